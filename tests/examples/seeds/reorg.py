# ruff: noqa
# fmt: off
"""YOLO's reorganisation in LeNet, as published: the import and the device are ours."""

import opbox as mx
import numpy as np
import logging

class NDArrayReorg(mx.operator.NDArrayOp):
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
                        , in_shape[0][2]/self.stride, in_shape[0][3]/self.stride]

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
        self.bwd_kernel.push([y],[dx],(y.shape[0]*y.shape[1]/4,1,1),(1,1,1))

mnist = mx.test_utils.get_mnist()
batch_size = 100
train_iter = mx.io.NDArrayIter(mnist['train_data'], mnist['train_label'], batch_size, shuffle=True)
val_iter = mx.io.NDArrayIter(mnist['test_data'], mnist['test_label'], batch_size)


data = mx.sym.var('data')
conv1 = mx.sym.Convolution(data=data, kernel=(5,5), num_filter=20)
tanh1 = mx.sym.Activation(data=conv1, act_type="tanh")
# pool1 = mx.sym.Pooling(data=tanh1, pool_type="max", kernel=(2,2), stride=(2,2))

reorg = NDArrayReorg(stride=2)
reg = reorg(data=tanh1, name='reorg')
conv2 = mx.sym.Convolution(data=reg, kernel=(5,5), num_filter=20)
tanh2 = mx.sym.Activation(data=conv2, act_type="tanh") # 80x8x8

conv2 = mx.sym.Convolution(data=tanh2, kernel=(5,5), num_filter=50)
tanh2 = mx.sym.Activation(data=conv2, act_type="tanh")
# pool2 = mx.sym.Pooling(data=tanh2, pool_type="max", kernel=(2,2), stride=(2,2))

flatten = mx.sym.flatten(data=tanh2)
fc1 = mx.sym.FullyConnected(data=flatten,num_hidden=500)
tanh3 = mx.sym.Activation(data=fc1, act_type="tanh")

fc2 = mx.sym.FullyConnected(data=tanh3, num_hidden=10)

mynet = mx.sym.SoftmaxOutput(data=fc2, name='softmax')

print(mynet.infer_shape(data=(100,1,28,28)))
mynet_model = mx.mod.Module(symbol=mynet, context=mx.cpu())

mynet_model.fit(train_iter,
eval_data=val_iter,
optimizer='sgd',
optimizer_params = {'learning_rate':0.1},
eval_metric='acc',
batch_end_callback=mx.callback.Speedometer(100,100),
num_epoch=10)

test_iter = mx.io.NDArrayIter(mnist['test_data'], None, batch_size)
prob = mynet_model.predict(test_iter)
test_iter = mx.io.NDArrayIter(mnist['test_data'], mnist['test_label'], batch_size)
# predict accuracy for lenet
acc = mx.metric.Accuracy()
mynet_model.score(test_iter, acc)
print(acc) # 网络是随便构建的,参数也是随便选的,所以出来的值并没有什么参考价值,只是为了验证调用mx.rtc创建cuda的kernel
