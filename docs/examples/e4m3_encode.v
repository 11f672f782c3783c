// An encoder of E4M3 (OCP, saturating, to nearest even), and a test bench that lowprec's vectors drive:
//
//     lowprec vectors write cast/e4m3fn --encoding hex --out .
//     iverilog -g2005 -o bench docs/examples/e4m3_encode.v && vvp bench +vectors=cast_e4m3fn_nearest_even_ocp_sat.hex +count=2094
//
// -DTIES_AWAY makes a mistake. The bench prints every answer, so `lowprec vectors compare ... --results` can explain it.
module e4m3_encode (input wire [31:0] x, output wire [7:0] y);
    wire [7:0] field = x[30:23];
    wire signed [9:0] exponent = $signed({2'b00, field}) - 10'sd127;
    wire subnormal = exponent < -10'sd6;
    wire [9:0] below = subnormal ? -10'sd6 - exponent : 10'sd0;
    wire [4:0] drop = 5'd20 + below[4:0];
    wire [23:0] significand = {field != 8'd0, x[22:0]};
    wire [23:0] kept = significand >> drop;
    wire [23:0] rest = significand & ((24'd1 << drop) - 24'd1);
    wire [23:0] half = 24'd1 << (drop - 5'd1);
`ifdef TIES_AWAY
    wire up = rest >= half;
`else
    wire up = rest > half || (rest == half && kept[0]);
`endif
    // A subnormal that rounds up to 8 is the least normal number, a significand that rounds up to 16 the next binade.
    wire [9:0] base = subnormal ? 10'd0 : {exponent[6:0] + 7'd6, 3'b000};
    wire [9:0] code = base + {5'd0, kept[4:0]} + {9'd0, up};
    wire nan = &field && x[22:0] != 23'd0;
    wire over = exponent > 10'sd8 || code > 10'h7e;
    wire under = exponent < -10'sd10;
    assign y = {x[31], nan ? 7'h7f : under ? 7'h00 : over ? 7'h7e : code[6:0]};
endmodule

module bench;
    reg [39:0] vectors [0:65535];
    reg [8*256-1:0] file;
    integer count, i, wrong;
    reg [31:0] x;
    wire [7:0] y;
    e4m3_encode encoder(.x(x), .y(y));
    initial begin
        wrong = 0;
        if (!$value$plusargs("vectors=%s", file) || !$value$plusargs("count=%d", count)) begin
            $display("needed: +vectors=FILE.hex +count=N");
            $finish;
        end
        $readmemh(file, vectors, 0, count - 1);
        for (i = 0; i < count; i = i + 1) begin
            x = vectors[i][39:8];
            #1;
            $display("%h", y);
            if (y !== vectors[i][7:0]) wrong = wrong + 1;
        end
        $display("// %0d of %0d vectors differ", wrong, count);
        $finish;
    end
endmodule
