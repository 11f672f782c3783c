"""Attention kernels as data: tiles of keys, two tensor cores, an online softmax and the format of P.

`kernel` holds the description of a kernel, `catalogue` those of public libraries, `forward` the one implementation and
`attention` the public function.
"""
