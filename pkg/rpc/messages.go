package rpc

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"

	"connectrpc.com/connect"
	"github.com/klauspost/compress/gzip"
)

// messageReader is the body of a request that Connect reads. It limits the memory of messages, because Connect would
// decompress and decode them without a limit. It reads nothing before Connect reads, which is after the gate.
//
//	body ─> wire limit ─> gunzip ─> message limit ─> count elements ─> charge ─> Connect
type messageReader struct {
	ctx       context.Context //nolint:containedctx // it is the request's context, and the reader lives as long
	body      io.ReadCloser
	procedure string
	limits    Limits
	client    netip.Addr
	caller    string

	framed, gzipped, json bool
	// query is the compressed message in the URL of a GET.
	query string

	// rest is the unread part of the current message.
	rest bytes.Reader
	err  error
	// begun reports whether the only message of an unframed body has been read.
	begun  bool
	charge int64
}

type messageReaderKey struct{}

// messageReaderOf returns the messageReader of a request's context, or nil.
func messageReaderOf(ctx context.Context) *messageReader {
	in, _ := ctx.Value(messageReaderKey{}).(*messageReader)
	return in
}

// newMessageReader returns a messageReader for r, and a copy of r. The reader reads and decompresses the body of r.
func newMessageReader(r *http.Request, limits Limits, client netip.Addr) (*messageReader, *http.Request) {
	in := &messageReader{body: r.Body, procedure: r.URL.Path, limits: limits, client: client}
	r = r.WithContext(context.WithValue(r.Context(), messageReaderKey{}, in))
	in.ctx = r.Context()
	if r.Method == http.MethodGet {
		if q := r.URL.Query(); q.Get("compression") == gzipName {
			in.query, in.json = q.Get("message"), q.Get("encoding") == "json"
		}
		return in, r
	}
	if r.Body == nil || r.Body == http.NoBody {
		return in, r
	}
	encoding := "Content-Encoding"
	kind := strings.TrimPrefix(strings.ToLower(r.Header.Get("Content-Type")), "application/")
	switch {
	case strings.HasPrefix(kind, "grpc"):
		in.framed, encoding = true, "Grpc-Encoding"
	case strings.HasPrefix(kind, "connect+"):
		in.framed, encoding = true, "Connect-Content-Encoding"
	}
	in.json = strings.Contains(kind, "json")
	if r.Header.Get(encoding) == gzipName {
		in.gzipped = true
		r.Header.Del(encoding)
	}
	r.Body = in
	return in, r
}

// Read implements io.Reader.
func (in *messageReader) Read(p []byte) (int, error) {
	for in.rest.Len() == 0 {
		if in.err == nil {
			in.err = in.readNext()
		}
		if in.err != nil {
			return 0, in.err
		}
	}
	return in.rest.Read(p)
}

// Close implements io.Closer.
func (in *messageReader) Close() error { return in.body.Close() }

// readNext reads one message.
func (in *messageReader) readNext() error {
	if !in.framed {
		if in.begun {
			return io.EOF
		}
		in.begun = true
		data, err := in.readMessage(in.body, in.gzipped, 0)
		if err != nil {
			return err
		}
		in.rest.Reset(data)
		return nil
	}
	var prefix [5]byte
	if _, err := io.ReadFull(in.body, prefix[:]); err != nil {
		return in.wireError(err)
	}
	size := int64(binary.BigEndian.Uint32(prefix[1:]))
	if size > in.limits.WireBytes || prefix[0]&1 == 0 && size > in.limits.MessageBytes {
		return tooLargeError("in a message", min(in.limits.WireBytes, in.limits.MessageBytes))
	}
	if prefix[0]&1 != 0 && !in.gzipped {
		return malformedError("a message is compressed, but no header names the compression")
	}
	in.releaseCharge() // of the previous message
	body := &io.LimitedReader{R: in.body, N: size}
	data, err := in.readMessage(body, prefix[0]&1 != 0 && size > 0, len(prefix))
	if err != nil {
		return err
	}
	if prefix[0]&1 == 0 && int64(len(data)-len(prefix)) < size {
		return malformedError("the body ends within a message")
	}
	// The decompressor may not read all bytes of the message. The rest does not belong to the next message.
	if _, err := io.Copy(io.Discard, body); err != nil {
		return in.wireError(err)
	}
	data[0] = prefix[0] &^ 1
	binary.BigEndian.PutUint32(data[1:], uint32(len(data)-len(prefix)))
	in.rest.Reset(data)
	return nil
}

// readMessage reads one message from body. In the result, prefix bytes are free before the message.
func (in *messageReader) readMessage(body io.Reader, gzipped bool, prefix int) ([]byte, error) {
	if gzipped {
		unzipped, err := gzip.NewReader(body)
		if errors.Is(err, io.EOF) {
			return make([]byte, prefix), nil // the body is empty
		}
		if err != nil {
			return nil, in.wireError(err)
		}
		body = unzipped
	}
	data := make([]byte, prefix, prefix+512)
	for {
		if len(data) == cap(data) {
			grown := make([]byte, len(data), 2*cap(data))
			copy(grown, data)
			data = grown
		}
		n, err := body.Read(data[len(data):cap(data)])
		if chargeErr := in.chargeBytes(int64(n)); chargeErr != nil {
			return nil, chargeErr
		}
		data = data[:len(data)+n]
		if int64(len(data)-prefix) > in.limits.MessageBytes {
			return nil, tooLargeError("in a message", in.limits.MessageBytes)
		}
		if errors.Is(err, io.EOF) {
			return data, in.chargeElements(data[prefix:])
		}
		if err != nil {
			return nil, in.wireError(err)
		}
	}
}

// chargeElements charges the message for its elements.
func (in *messageReader) chargeElements(message []byte) error {
	if len(message) <= maxUncounted && in.limits.Elements >= DefaultElements {
		return nil
	}
	n := 0
	if in.json {
		n = countJSON(message, in.limits.Elements)
	} else if s := shapeOf(in.procedure); s != nil {
		n = countProto(message, s, in.limits.Elements, 0)
	}
	if n > in.limits.Elements {
		return tooManyError(in.limits.Elements)
	}
	return in.chargeBytes(int64(n) * elementBytes)
}

// chargeBytes charges n bytes to the caller's budget.
func (in *messageReader) chargeBytes(n int64) error {
	if err := in.limits.Budget.chargeCaller(in.ctx, in.caller, n); err != nil {
		return err
	}
	in.charge += n
	return nil
}

// releaseCharge gives the charge back to the budget. It is called when a call has ended, and when a message of a
// stream has been decoded. in may be nil.
func (in *messageReader) releaseCharge() {
	if in != nil {
		in.limits.Budget.returnBytes(in.caller, in.charge)
		in.charge = 0
	}
}

// admitCaller sets the caller, and checks a compressed message in the URL.
func (in *messageReader) admitCaller(caller string) error {
	if in == nil {
		return nil
	}
	in.caller = caller
	if in.query == "" {
		return nil
	}
	packed, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(in.query, "="))
	if err != nil {
		return nil //nolint:nilerr // Connect will return the error
	}
	_, err = in.readMessage(bytes.NewReader(packed), true, 0)
	return err
}

// wireError returns the error for the caller if the body cannot be read.
func (in *messageReader) wireError(err error) error {
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return tooLargeError("as it is sent", over.Limit)
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum):
		return malformedError("the body is not valid gzip")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return malformedError("the body ends within a message")
	}
	return err
}

func malformedError(why string) error {
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("decode the request: %s", why))
}
