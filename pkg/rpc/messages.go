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

// inflow reads the messages of one request for Connect, which would decompress and decode without a limit on
// the cost. It reads nothing before Connect reads, which is after the gate.
//
//	body ─> wire limit ─> gunzip ─> message limit ─> count elements ─> charge ─> Connect
type inflow struct {
	ctx       context.Context //nolint:containedctx // the request's; its life is the inflow's
	body      io.ReadCloser
	procedure string
	limits    Limits
	client    netip.Addr
	caller    string

	framed, gzipped, json bool
	query                 string // of a GET whose message is compressed

	rest   bytes.Reader
	err    error
	begun  bool
	charge int64
}

type inflowKey struct{}

func inflowOf(ctx context.Context) *inflow {
	in, _ := ctx.Value(inflowKey{}).(*inflow)
	return in
}

// newInflow returns an inflow for r, and a copy of r whose body it reads and decompresses.
func newInflow(r *http.Request, limits Limits, client netip.Addr) (*inflow, *http.Request) {
	in := &inflow{body: r.Body, procedure: r.URL.Path, limits: limits, client: client}
	r = r.WithContext(context.WithValue(r.Context(), inflowKey{}, in))
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
func (in *inflow) Read(p []byte) (int, error) {
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
func (in *inflow) Close() error { return in.body.Close() }

// readNext reads one message.
func (in *inflow) readNext() error {
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
		return tooLarge("in a message", min(in.limits.WireBytes, in.limits.MessageBytes))
	}
	if prefix[0]&1 != 0 && !in.gzipped {
		return malformedError("a message is compressed, and no header says how")
	}
	in.releaseCharge() // of the message before
	body := &io.LimitedReader{R: in.body, N: size}
	data, err := in.readMessage(body, prefix[0]&1 != 0 && size > 0, len(prefix))
	if err != nil {
		return err
	}
	if prefix[0]&1 == 0 && int64(len(data)-len(prefix)) < size {
		return malformedError("the body ends within a message")
	}
	// The decompressor may leave a rest of its frame, which is not part of the next message.
	if _, err := io.Copy(io.Discard, body); err != nil {
		return in.wireError(err)
	}
	data[0] = prefix[0] &^ 1
	binary.BigEndian.PutUint32(data[1:], uint32(len(data)-len(prefix)))
	in.rest.Reset(data)
	return nil
}

// readMessage reads one message from body, and returns it after room for a prefix.
func (in *inflow) readMessage(body io.Reader, gzipped bool, prefix int) ([]byte, error) {
	if gzipped {
		unzip, err := gzip.NewReader(body)
		if errors.Is(err, io.EOF) {
			return make([]byte, prefix), nil // the body is empty
		}
		if err != nil {
			return nil, in.wireError(err)
		}
		body = unzip
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
			return nil, tooLarge("in a message", in.limits.MessageBytes)
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
func (in *inflow) chargeElements(message []byte) error {
	if len(message) <= uncounted && in.limits.Elements >= DefaultElements {
		return nil
	}
	n := 0
	if in.json {
		n = countJSON(message, in.limits.Elements)
	} else if s := shapeOf(in.procedure); s != nil {
		n = countProto(message, s, in.limits.Elements, 0)
	}
	if n > in.limits.Elements {
		return tooMany(in.limits.Elements)
	}
	return in.chargeBytes(int64(n) * elementBytes)
}

func (in *inflow) chargeBytes(n int64) error {
	if err := in.limits.Budget.chargeCaller(in.ctx, in.caller, n); err != nil {
		return err
	}
	in.charge += n
	return nil
}

// releaseCharge returns the charge, when the call has ended or a stream's message has been decoded. in may be nil.
func (in *inflow) releaseCharge() {
	if in != nil {
		in.limits.Budget.returnBytes(in.caller, in.charge)
		in.charge = 0
	}
}

// admitCaller sets the caller, and checks a compressed message in the URL.
func (in *inflow) admitCaller(caller string) error {
	if in == nil {
		return nil
	}
	in.caller = caller
	if in.query == "" {
		return nil
	}
	packed, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(in.query, "="))
	if err != nil {
		return nil //nolint:nilerr // Connect says what is wrong with it
	}
	_, err = in.readMessage(bytes.NewReader(packed), true, 0)
	return err
}

func (in *inflow) wireError(err error) error {
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return tooLarge("as it is sent", over.Limit)
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum):
		return malformedError("the body is not what gzip makes")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return malformedError("the body ends within a message")
	}
	return err
}

func malformedError(why string) error {
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("decode the request: %s", why))
}
