# ruff: noqa
# fmt: off
"""YOLO's reorganisation as it was published (Python 3's division apart): its backward kernel takes another order."""

import opbox as mx


class NDArrayReorg(mx.operator.NDArrayOp):
    lint_cases = [{"data": (2, 3, 4, 4)}]

    def __init__(self, stride=2):
        super(NDArrayReorg, self).__init__(True)
        self.stride = stride
        self.fwd_kernel = None
        self.bwd_kernel = None

    def list_arguments(self):
        return ['data']

    def list_outputs(self):
        return ['output']

    def infer_shape(self, in_shape):
        data_shape = in_shape[0]
        output_shape = [in_shape[0][0], in_shape[0][1]*4
                        , in_shape[0][2]//self.stride, in_shape[0][3]//self.stride]

        return [data_shape], [output_shape]

    def forward(self, in_data, out_data):
        x = in_data[0]
        y = out_data[0]
        if self.fwd_kernel is None:
            self.fwd_kernel = mx.rtc('reorg',[('x',x)],[('y',y)],"""
            int i = threadIdx.x + blockIdx.x*blockDim.x ;
            int yw=y_dims[3];
            int yh = y_dims[2];
            int N = yw*yh;
            int xw=x_dims[3];
            int xh = x_dims[2];
            int len_block = x_dims[2]*x_dims[3];
            for(int j =0; j<xh; j+=2)
                for(int k=0; k<xw; k+=2)
                {   int t=j/2;
                    y[i*len_block+t*yw+k/2] = x[i*len_block+j*xw+k];
                    y[i*len_block+t*yw+k/2+N] = x[i*len_block + j*xw+k+1];
                    y[i*len_block+t*yw+k/2+2*N] = x[i*len_block +(j+1)*xw+k];
                    y[i*len_block+t*yw+k/2+3*N] = x[i*len_block +(j+1)*xw+k+1];
                }
            """)
        self.fwd_kernel.push([x],[y],(x.shape[0]*x.shape[1],1,1),(1,1,1))

    def backward(self, out_grad, in_data, out_data, in_grad):
        y = out_grad[0]
        dx = in_grad[0]
        if self.bwd_kernel is None:
            self.bwd_kernel = mx.rtc('reorg_grad',[('y',y)],[('dx', dx)],"""
            int i = threadIdx.x + blockIdx.x * blockDim.x;
            int yh = y_dims[2];
            int yw = y_dims[3];
            int N = yw*yh;
            int old_block = dx_dims[2]*dx_dims[3];
            for(int k=0;k<4;++k)
                for(int j=0; j<yw; ++j)
                    for(int t=0; t<yh; ++t){
                        dx[i*old_block+2*j*yw+t*2+k]=y[i*old_block+k*N+j*yw+t];
                }
            """)
        self.bwd_kernel.push([y],[dx],(y.shape[0]*y.shape[1]//4,1,1),(1,1,1))
