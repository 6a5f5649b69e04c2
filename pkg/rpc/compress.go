package rpc

import (
	"io"

	"connectrpc.com/connect"
	"github.com/klauspost/compress/gzip"
)

// gzipName is what HTTP calls the one compression that everybody has.
const gzipName = "gzip"

// Both are of a faster gzip than connect's own, at its fastest level, because large snapshots
// spend most of their time in compression.
func newDecompressor() connect.Decompressor { return new(gzip.Reader) }

func newCompressor() connect.Compressor {
	w, err := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is one of the package's own
	}
	return w
}
