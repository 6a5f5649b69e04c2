//go:build !cgo

package ort

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOpen_SaysThatCgoIsMissing(t *testing.T) {
	_, err := Open("libonnxruntime.so.1")
	require.ErrorIs(t, err, ErrNoCgo)
	t.Skip("no C compiler, so ONNX Runtime is not tested")
}
