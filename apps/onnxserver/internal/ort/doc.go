// Package ort runs models with ONNX Runtime, whose shared library is loaded at run time. It is the only package of the
// repository that needs a C compiler. Without one, it builds, and Open returns an error.
package ort

import (
	"errors"
	"path/filepath"
	"runtime"
)

// ErrNoCgo is the error of a program that was built without a C compiler.
var ErrNoCgo = errors.New("this program was built without cgo, so it cannot use ONNX Runtime: build it on a machine with a C compiler, with CGO_ENABLED=1")

// DefaultLibrary returns the path of the library that is in the folder of a program.
func DefaultLibrary(program string) string {
	name := "libonnxruntime.so.1"
	switch runtime.GOOS {
	case "darwin":
		name = "libonnxruntime.1.dylib"
	case "windows":
		name = "onnxruntime.dll"
	}
	return filepath.Join(filepath.Dir(program), name)
}
