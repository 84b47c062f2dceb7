"""Small programs that are wrong as newcomers' are: what each raises, with fragments of its sentence."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PREAMBLE", "PROGRAMS", "WrongProgram"]


class WrongProgram(NamedTuple):
    """A program, and what it is to end in.

    Attributes:
        text: the program; `PREAMBLE` has run before it.
        kinds: the names of classes that its error must be of, as `except` would catch it: MXNet's class among them.
        fragments: what the sentence has, in this order.
    """

    text: str
    kinds: str
    fragments: tuple[str, ...]


PREAMBLE = """
import numpy as np
import opbox as mx

X = np.random.default_rng(0).random((20, 4)).astype("float32")
Y = np.zeros(20, "float32")


def network():
    hidden = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
    return mx.sym.SoftmaxOutput(hidden, name="softmax")


def batches(**options):
    return mx.io.NDArrayIter(X, Y, 5, **options)


def module():
    ready = mx.mod.Module(network())
    ready.bind(batches().provide_data, batches().provide_label)
    ready.init_params()
    ready.init_optimizer()
    return ready
"""


def _fit(options: str) -> str:
    return f"mx.mod.Module(network()).fit(batches(), {options})"


_OTHER_LABELS = """
class Batches(mx.io.DataIter):
    provide_data, provide_label, count = [("data", (5, 4))], [("softmax_label", (5,))], 0
    def reset(self):
        pass
    def next(self):
        self.count += 1
        label = mx.nd.zeros((5,) if self.count < 3 else (5, 2))
        return mx.io.DataBatch([mx.nd.ones((5, 4))], [label], pad=0)
mx.mod.Module(network()).fit(Batches(5), num_epoch=1)
"""
_PROP = """
class Twice(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        {body}
@mx.operator.register("twice")
class TwiceProp(mx.operator.CustomOpProp):
    {shapes}
    def create_operator(self, ctx, shapes, dtypes):
        return {operator}
mx.nd.Custom(mx.nd.ones(3), op_type="twice").asnumpy()
"""


def _custom(
    body: str = "self.assign(out_data[0], req[0], in_data[0] * 2)", operator: str = "Twice()", shapes: str = ""
) -> str:
    return _PROP.format(body=body, operator=operator, shapes=shapes)


PROGRAMS: dict[str, WrongProgram] = {
    # Symbols.
    "a misspelt parameter": WrongProgram(
        "mx.sym.FullyConnected(mx.sym.Variable('data'), num_hiden=3)", "MXNetError", ("num_hiden", "num_hidden?")
    ),
    "a share above 1": WrongProgram(
        "mx.sym.Dropout(mx.sym.Variable('data'), p=1.5)", "MXNetError", ("'p'", "at most 1", "1.5")
    ),
    "numpy on a symbol": WrongProgram("np.exp(mx.sym.Variable('x'))", "TypeError", ("<Symbol x>", "mx.sym.exp(x)")),
    "@ of symbols": WrongProgram(
        "mx.sym.Variable('a') @ mx.sym.Variable('b')", "TypeError", ("@", "mx.sym.dot(lhs, rhs)")
    ),
    "a network called with an array": WrongProgram(
        "network()(mx.nd.ones((2, 4)))", "TypeError", ("Symbols", "NDArray of shape (2, 4)", "eval(")
    ),
    "the shape of a symbol": WrongProgram("network().shape", "AttributeError", ("'shape'", "infer_shape")),
    "a symbol that is to train": WrongProgram("network().fit(batches())", "AttributeError", ("'fit'", "mx.mod.Module")),
    "a symbol as a condition": WrongProgram("bool(mx.sym.Variable('x') > 0)", "MXNetError", ("Symbol", "no values")),
    "a bind without shapes": WrongProgram(
        "network().simple_bind(mx.cpu())",
        "RuntimeError MXNetError",
        ("got none", "data ()", "simple_bind(ctx, data=(…))"),
    ),
    "an executor's input misspelt": WrongProgram(
        "network().simple_bind(mx.cpu(), data=(5, 4)).forward(dta=mx.nd.ones((5, 4)))", "TypeError", ("'dta'", "data")
    ),
    "backward without heads": WrongProgram(
        "e = (mx.sym.Variable('a') * 2).simple_bind(mx.cpu(), a=(3,))\n"
        "e.forward(is_train=True)\ne.backward()\nmx.nd.waitall()",
        "MXNetError",
        ("head gradient", "missing"),
    ),
    # Arrays.
    "@ of arrays": WrongProgram("mx.nd.ones((2, 3)) @ mx.nd.ones((3, 2))", "TypeError", ("@", "mx.nd.dot(lhs, rhs)")),
    "two conditions with &": WrongProgram(
        "(mx.nd.ones(3) > 0) & (mx.nd.ones(3) < 2)", "TypeError", ("&", "mx.nd.logical_and(lhs, rhs)")
    ),
    "an array and a symbol": WrongProgram(
        "mx.nd.ones(3) + mx.sym.Variable('x')", "TypeError", ("lhs + rhs", "<Symbol x>", "no values")
    ),
    "an array and a complex number": WrongProgram("mx.nd.ones(3) + 1j", "TypeError", ("lhs + rhs", "1j")),
    "torch's numpy()": WrongProgram("mx.nd.ones(3).numpy()", "AttributeError", ("'numpy'", "asnumpy()")),
    "a gradient of an array": WrongProgram("mx.nd.ones(3).attach_grad()", "AttributeError", ("symbols", "backward()")),
    "text assigned": WrongProgram("mx.nd.ones(3)[:] = 'a'", "TypeError", ("assignment", "a number", "'a'")),
    "a complex number assigned": WrongProgram("mx.nd.ones(3)[:] = 1j", "TypeError", ("assignment", "1j")),
    "unequal lists assigned": WrongProgram(
        "mx.nd.ones((2, 2))[:] = [[1, 2], [3]]", "TypeError", ("assignment", "equal lengths", "[[1, 2], [3]]")
    ),
    "a negative size": WrongProgram("mx.nd.zeros((2, -3))", "MXNetError", ("shape", "0 or more", "(2, -3)")),
    "a truth value as a size": WrongProgram("mx.nd.zeros((True, 3))", "TypeError", ("shape", "integers", "(True, 3)")),
    "a number beyond its type": WrongProgram(
        "mx.nd.array([2**70], dtype='int64')", "TypeError", ("array", "int64 can hold", "1180591620717411303424")
    ),
    "an unknown type": WrongProgram(
        "mx.nd.zeros(3, dtype='flaot32')", "TypeError", ("flaot32", "did you mean 'float32'")
    ),
    "a numpy array to write to": WrongProgram(
        "mx.nd.exp(mx.nd.ones(3), out=np.ones(3))", "TypeError", ("exp: out", "NDArray", "ndarray of shape (3,)")
    ),
    "a shape of letters": WrongProgram("mx.nd.ones(6).reshape('a')", "TypeError", ("reshape: shape", "'a'")),
    "shapes that do not fit": WrongProgram(
        "(mx.nd.ones((2, 3)) + mx.nd.ones((4, 5))).asnumpy()", "MXNetError", ("(2, 3)", "(4, 5)", "program.py:1")
    ),
    "a path that is none": WrongProgram("mx.nd.load(3)", "TypeError", ("load: fname", "a path", "3")),
    "an option that zeros lacks": WrongProgram(
        "mx.nd.zeros(3, dtpye='int32')", "MXNetError", ("zeros", "'dtpye'", "dtype")
    ),
    "one size to broadcast to": WrongProgram(
        "mx.nd.ones(1).broadcast_to(3)", "TypeError", ("broadcast_to: shape", "a tuple", "3")
    ),
    "numpy's array to shuffle": WrongProgram(
        "mx.nd.random.shuffle(X)", "TypeError", ("NDArrays", "ndarray of shape (20, 4)", "mx.nd.array")
    ),
    "arrays of two lengths in a list": WrongProgram(
        "mx.nd.array([mx.nd.ones(2), mx.nd.ones(3)])", "TypeError", ("array", "equal lengths", "<NDArray 2 @cpu(0)>")
    ),
    # Files.
    "a checkpoint that is not there": WrongProgram(
        "mx.model.load_checkpoint('nowhere/net', 3)",
        "MXNetError FileNotFoundError OSError",
        ("nowhere/net-symbol.json", "got none", "no folder nowhere"),
    ),
    "a checkpoint of no number": WrongProgram(
        "mx.model.load_checkpoint('net', '3')", "Exception", ("net-symbol.json",)
    ),
    "a file that is misspelt": WrongProgram(
        "mx.nd.save('weights.params', mx.nd.ones(3))\nmx.nd.load('wieghts.params')",
        "MXNetError FileNotFoundError",
        ("wieghts.params", "did you mean weights.params"),
    ),
    "a folder that is not there": WrongProgram(
        "module().save_checkpoint('nowhere/net', 1)", "MXNetError FileNotFoundError", ("nowhere", "os.makedirs")
    ),
    "a folder for a file": WrongProgram(
        "import os\nos.mkdir('a.params')\nmx.nd.load('a.params')", "MXNetError OSError", ("a.params", "a folder")
    ),
    "text for parameters": WrongProgram(
        "with open('a.params', 'w') as file:\n    file.write('hello, world')\nmx.nd.load('a.params')",
        "MXNetError",
        ("a.params", "no file of mx.nd.save's"),
    ),
    # Modules.
    "no labels": WrongProgram(
        "mx.mod.Module(network()).fit(mx.io.NDArrayIter(X, None, 5), num_epoch=1)",
        "ValueError",
        ("expected labels", "NDArrayIter(data, label)"),
    ),
    "labels of another shape midway": WrongProgram(
        _OTHER_LABELS,
        "MXNetError",
        ("epoch 0, batch 2: softmax_label", "(5,)", "(5, 2)", "provide_label"),
    ),
    "a data name of nobody's": WrongProgram(
        "mx.mod.Module(network(), data_names=['x'])", "ValueError", ("data_names", "'x'", "data, softmax_label")
    ),
    "an iterator's name of nobody's": WrongProgram(
        "mx.mod.Module(network()).fit(batches(data_name='x'), num_epoch=1)", "ValueError", ("data_name='data'",)
    ),
    "forward before bind": WrongProgram(
        "mx.mod.Module(network()).forward(next(batches()))", "AssertionError", ("not bound yet", "bind(")
    ),
    "outputs before forward": WrongProgram(
        "module().get_outputs()", "AssertionError", ("get_outputs", "forward(batch)")
    ),
    "an array for a batch": WrongProgram("module().forward(X[:5])", "TypeError", ("data_batch", "mx.io.DataBatch")),
    "arrays for an iterator": WrongProgram(
        "mx.mod.Module(network()).fit(X, num_epoch=1)", "TypeError", ("train_data", "NDArrayIter")
    ),
    "epochs as text": WrongProgram(_fit("num_epoch='3'"), "TypeError", ("num_epoch", "'3'")),
    "a monitor that is none": WrongProgram(_fit("num_epoch=1, monitor=3"), "TypeError", ("monitor", "mx.mon.Monitor")),
    "a callback of other arguments": WrongProgram(
        _fit("num_epoch=1, batch_end_callback=lambda: 3"), "TypeError", ("batch_end_callback", "(param)")
    ),
    "parameters of another network": WrongProgram(
        "module().set_params({'fc_weigt': mx.nd.ones((3, 4))}, {})", "Exception", ("'fc_weigt'", "allow_extra=True")
    ),
    "a bucket that is a symbol": WrongProgram(
        "mx.mod.BucketingModule(lambda key: network(), default_bucket_key=3)", "TypeError", ("sym_gen", "data_names")
    ),
    # Iterators.
    "iterators around arrays": WrongProgram("mx.io.ResizeIter(X, 3)", "TypeError", ("data_iter", "DataIter")),
    "words among numbers": WrongProgram(
        "with open('a.csv', 'w') as file:\n    file.write('a,b\\n1,2\\n')\n"
        "mx.io.CSVIter(data_csv='a.csv', data_shape=(2,), batch_size=1)",
        "ValueError",
        ("a.csv", "numbers", "'a'"),
    ),
    "a table that is not there": WrongProgram(
        "mx.io.CSVIter(data_csv='a.csv', data_shape=(2,))", "MXNetError FileNotFoundError", ("a.csv", "got none")
    ),
    # Metrics.
    "labels beyond the classes": WrongProgram(
        "module().score(mx.io.NDArrayIter(X, Y + 7, 5), 'ce')",
        "IndexError",
        ("cross-entropy", "0 to 2", "3 columns", "7 in row 0"),
    ),
    "a metric misspelt": WrongProgram(
        _fit("num_epoch=1, eval_metric='acuracy'"), "AssertionError", ("did you mean accuracy",)
    ),
    "shapes that a metric cannot compare": WrongProgram(
        "mx.metric.create('mse').update([mx.nd.ones((3, 2))], [mx.nd.ones((4, 3))])",
        "ValueError",
        ("mse", "(4, 3)", "(3, 2)"),
    ),
    "a metric that returns nothing": WrongProgram(
        "mx.metric.np(lambda label, pred: None).update([mx.nd.ones(3)], [mx.nd.ones(3)])",
        "TypeError",
        ("(sum, count)", "None"),
    ),
    "more classes asked for than there are": WrongProgram(
        "mx.metric.TopKAccuracy(9).update([mx.nd.array([0, 1])], [mx.nd.ones((2, 3))])",
        "ValueError",
        ("9 classes", "(2, 3)"),
    ),
    "predictions without classes": WrongProgram(
        "mx.metric.F1().update([mx.nd.array([0, 1])], [mx.nd.array([0.2, 0.8])])",
        "ValueError",
        ("F1", "(batch, 2)", "(2,)"),
    ),
    "a metric of one argument": WrongProgram(
        _fit("num_epoch=1, eval_metric=lambda label: 3"), "TypeError", ("(label, pred)", "<lambda>(label)")
    ),
    # Optimizers, initializers, schedulers.
    "an unknown optimizer": WrongProgram(
        _fit("num_epoch=1, optimizer='adan'"), "ValueError", ("'adan'", "did you mean")
    ),
    "a class for an optimizer": WrongProgram(
        "mx.optimizer.create(mx.optimizer.SGD)", "TypeError", ("'sgd'", "the class SGD")
    ),
    "torch's lr": WrongProgram("mx.optimizer.create('sgd', lr=0.1)", "TypeError", ("learning_rate", "'lr'")),
    "a class for an initializer": WrongProgram(
        _fit("num_epoch=1, initializer=mx.init.Xavier"), "TypeError", ("initializer", "mx.init.Xavier()")
    ),
    "parameters to start from that are not there": WrongProgram(
        "mx.init.Load('a.params')", "MXNetError FileNotFoundError", ("a.params", "got none")
    ),
    "a number as text": WrongProgram(
        "mx.optimizer.create('adam', beta1='0.9')", "TypeError", ("'adam'", "beta1", "a number", "'0.9'")
    ),
    "an update of numpy's arrays": WrongProgram(
        "mx.optimizer.get_updater(mx.optimizer.create('sgd'))(0, X, X)", "TypeError", ("sgd_update", "(20, 4)")
    ),
    "numpy's array to initialize": WrongProgram(
        "mx.init.Uniform(1)(mx.init.InitDesc('fc_weight'), np.ones(3))", "TypeError", ("initializer", "(3,)")
    ),
    "an initializer that is a number": WrongProgram(
        "mx.sym.Variable('w', init=3)", "TypeError", ("Variable: init", "mx.init.Zero()", "3")
    ),
    "an attribute that is a number": WrongProgram(
        "mx.sym.Variable('w', attr={'a': 3})", "ValueError", ("attribute 'a'", "a string", "int")
    ),
    # Loops.
    "a loop's body of one value": WrongProgram(
        "mx.nd.contrib.foreach(lambda a, s: a, mx.nd.ones(3), mx.nd.ones(1))",
        "ValueError",
        ("foreach: body", "two values"),
    ),
    "a condition of three numbers": WrongProgram(
        "mx.nd.contrib.cond(mx.nd.ones(3), lambda: 1, lambda: 2)", "ValueError", ("cond: pred", "shape (3,)")
    ),
    # Recurrent cells.
    "a stack of a number": WrongProgram("mx.rnn.SequentialRNNCell().add(3)", "TypeError", ("expected a cell", "3")),
    "a modifier of a number": WrongProgram("mx.rnn.ResidualCell(3)", "TypeError", ("ResidualCell", "a cell", "3")),
    "a step without states": WrongProgram(
        "mx.rnn.LSTMCell(5)(mx.sym.Variable('x'), None)", "ValueError", ("states", "None", "begin_state()")
    ),
    "too few steps": WrongProgram(
        "mx.rnn.LSTMCell(5).unroll(3, [mx.sym.Variable('a')])", "AssertionError", ("3 steps", "got 1")
    ),
    "an unknown cell": WrongProgram("mx.rnn.FusedRNNCell(5, mode='gruu')", "ValueError", ("mode", "gru", "'gruu'")),
    # Operators of the user's own.
    "an operator that nobody registered": WrongProgram(
        "mx.nd.Custom(mx.nd.ones(3), op_type='nothere').asnumpy()", "MXNetError", ("'nothere'", "register")
    ),
    "an operator that raises": WrongProgram(_custom(body="{}['a']"), "MXNetError", ("forward: KeyError: 'a'",)),
    "an operator that is not made": WrongProgram(
        _custom(operator="None"), "MXNetError", ("create_operator", "CustomOp")
    ),
    "shapes for one of two": WrongProgram(
        _custom(shapes="def infer_shape(self, shapes): return shapes"), "MXNetError", ("infer_shape", "lists")
    ),
    # What goes along with a training.
    "no batches between two lines": WrongProgram("mx.callback.Speedometer(5, 0)", "ValueError", ("frequent", "got 0")),
    "a checkpoint to nowhere": WrongProgram(
        _fit("num_epoch=1, epoch_end_callback=mx.callback.do_checkpoint('nowhere/net')"),
        "MXNetError OSError",
        ("os.makedirs",),
    ),
    "a module for an executor": WrongProgram(
        "mx.mon.Monitor(1).install(module())", "TypeError", ("an executor", "Module", "install_monitor")
    ),
    "a bar of no batches": WrongProgram("mx.callback.ProgressBar(0)", "ValueError", ("total", "got 0")),
    "a log of every no batches": WrongProgram("mx.callback.log_train_metric(0)", "ValueError", ("period", "got 0")),
    "a pattern that is none": WrongProgram("mx.mon.Monitor(1, pattern='(')", "ValueError", ("pattern", "'('")),
    "a statistic that is none": WrongProgram("mx.mon.Monitor(1, stat_func=3)", "TypeError", ("stat_func", "3")),
    "a summary of one shape": WrongProgram(
        "mx.viz.print_summary(network(), shape=(5, 4))", "TypeError", ("shape", "{'data': (1, 784)}", "(5, 4)")
    ),
    "a drawing of a module": WrongProgram("mx.viz.plot_network(module())", "TypeError", ("symbol", "Module")),
    "a seed of letters": WrongProgram("mx.random.seed('a')", "ValueError", ("seed", "'a'")),
    "random numbers of no shape": WrongProgram(
        "mx.nd.random.uniform(shape=(2, -1))", "MXNetError", ("shape", "(2, -1)")
    ),
    "a device as text": WrongProgram("mx.nd.ones(3, ctx='gpu(0)')", "TypeError", ("ctx", "mx.gpu(0)", "'gpu(0)'")),
    "a letter for a device's number": WrongProgram("mx.cpu('a')", "TypeError", ("device_id", "'a'")),
    "an address that is a number": WrongProgram("mx.connect(3)", "TypeError", ("url", "http://", "3")),
    "an unknown device": WrongProgram("mx.Context('tpu', 0)", "ValueError", ("cpu, gpu", "'tpu'")),
    "gluon": WrongProgram("mx.gluon.nn.Dense(3)", "AttributeError", ("'gluon'", "symbols")),
}
