package rpc

import (
	"io"

	"connectrpc.com/connect"
	"github.com/klauspost/compress/gzip"
)

// gzipName is HTTP's name of the compression that all clients support.
const gzipName = "gzip"

// newDecompressor and newCompressor use a faster gzip than Connect does, at its fastest level. Compression takes
// most of the time of large snapshots.
func newDecompressor() connect.Decompressor { return new(gzip.Reader) }

func newCompressor() connect.Compressor {
	w, err := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is a constant of the package
	}
	return w
}
