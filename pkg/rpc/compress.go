package rpc

import (
	"io"

	"connectrpc.com/connect"
	"github.com/klauspost/compress/gzip"
)

// gzipName is what HTTP calls the one compression that everybody has.
const gzipName = "gzip"

// Both are of a faster gzip than connect's own, at its fastest level: a snapshot of 4,000
// items took the control plane 45 ms to send, and takes 16.
func newDecompressor() connect.Decompressor { return new(gzip.Reader) }

func newCompressor() connect.Compressor {
	w, err := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is one of the package's own
	}
	return w
}
