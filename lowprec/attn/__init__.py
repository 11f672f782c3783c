"""Attention kernels as data: tiles of keys, two tensor cores, an online softmax and the format of P.

`kernel` defines the description of a kernel, `catalogue` has those of public libraries, `forward` computes any of them,
and `attention` is the public function.
"""
