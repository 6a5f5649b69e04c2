package onnxserver

import (
	"context"

	"github.com/windlass-run/windlass/apps/onnxserver/internal/tensor"
)

// Engine opens models. It is safe for concurrent use.
type Engine interface {
	// Version returns the version of the engine.
	Version() string
	// Open loads a model from a file. threads is the number of threads of one run.
	Open(file string, threads int) (Session, error)
}

// Session is a loaded model. It is safe for concurrent use, except Close.
type Session interface {
	Inputs() []tensor.Info
	Outputs() []tensor.Info
	// Run runs the model. The inputs are in the order of Inputs, and the result is in the order of Outputs. The end of
	// ctx ends the run with the cause of ctx.
	Run(ctx context.Context, inputs []tensor.Tensor) ([]tensor.Tensor, error)
	// Close frees the model. No run may be running.
	Close() error
}
