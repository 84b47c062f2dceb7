"""The Open Inference Protocol by gRPC, as Triton's clients call it; needs the extra opbox-service[grpc]."""
