"""ONNX models: `mx.onnx.export_model` and `import_model`, compared with opbox's own forward."""
