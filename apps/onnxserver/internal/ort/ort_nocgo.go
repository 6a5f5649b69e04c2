//go:build !cgo

package ort

import "github.com/windlass-run/windlass/apps/onnxserver"

// Open returns ErrNoCgo.
func Open(string) (onnxserver.Engine, error) { return nil, ErrNoCgo }
