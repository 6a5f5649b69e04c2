package gateway_test

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

// drain reads frames until the connection ends, and returns the error of the end. It closes acknowledged when the
// answer to the ping with data arrives.
func (f *frames) drain(data [8]byte, acknowledged chan<- struct{}) error {
	for {
		frame, err := f.framer.ReadFrame()
		if _, ofStream := errors.AsType[http2.StreamError](err); err != nil && !ofStream {
			return err
		}
		if p, ok := frame.(*http2.PingFrame); ok && p.IsAck() && p.Data == data {
			close(acknowledged)
		}
	}
}

// ping returns a frame that the other side answers after it has read all frames before.
func ping(t *testing.T, data [8]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, http2.NewFramer(&out, nil).WritePing(false, data))
	return out.Bytes()
}

// A connection of HTTP/2 that sends without end uses a bounded amount of memory, and other connections are served.
func TestHTTP2_FloodsAreBounded(t *testing.T) {
	// A connection may have a thousand requests at a time. Each request uses up to 64 KiB for its header or for two
	// buffers that pass on its body. It also uses two connections and their buffers.
	const bound, boundOfRequests = 16 << 20, 1000 * (128 << 10)
	header := block([]string{":method: GET", ":scheme: http", ":authority: echo.local", ":path: /flood"})
	large := block([]string{"x: " + strings.Repeat("y", 8<<10)})
	last := [8]byte{'l', 'a', 's', 't'}
	cases := map[string]struct {
		// frames writes part n of the flood.
		frames func(f *http2.Framer, n uint32)
		parts  uint32
		// ends: the gateway ends the connection.
		ends bool
		// bound is how much memory the flood may use, in bytes.
		bound int64
	}{
		"headers that go on": {func(f *http2.Framer, n uint32) {
			if n == 0 {
				_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: header})
				return
			}
			_ = f.WriteContinuation(1, false, large)
		}, 5000, true, bound},
		"empty parts of a header": {func(f *http2.Framer, n uint32) {
			if n == 0 {
				_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: header})
				return
			}
			_ = f.WriteContinuation(1, false, nil)
		}, 100_000, false, bound},
		"pings": {func(f *http2.Framer, _ uint32) { _ = f.WritePing(false, [8]byte{}) }, 100_000, false, bound},
		"settings": {func(f *http2.Framer, n uint32) {
			_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: n})
		}, 50_000, false, bound},
		"empty data": {func(f *http2.Framer, n uint32) {
			if n == 0 {
				_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: header, EndHeaders: true})
				return
			}
			_ = f.WriteData(1, false, nil)
		}, 50_000, false, bound},
		"priorities": {func(f *http2.Framer, n uint32) {
			_ = f.WritePriority(2*n+1, http2.PriorityParam{StreamDep: 0, Weight: 1})
		}, 50_000, false, bound},
		"window updates": {func(f *http2.Framer, _ uint32) { _ = f.WriteWindowUpdate(0, 1) }, 50_000, false, bound},
		"more streams than there may be": {func(f *http2.Framer, n uint32) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*n + 1, BlockFragment: header, EndHeaders: true})
		}, 20_000, false, boundOfRequests},
		"large headers": {func(f *http2.Framer, n uint32) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*n + 1, BlockFragment: header})
			for range 12 {
				_ = f.WriteContinuation(2*n+1, false, large)
			}
			_ = f.WriteContinuation(2*n+1, true, nil)
		}, 500, false, boundOfRequests},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			// Each case has its own gateway, because a gateway still reads a client's bytes after the client is gone.
			r := start(t, nil)
			r.put(t, echo(startRecorder(t).address))
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			f := r.frames(t)
			require.NoError(t, f.conn.SetDeadline(time.Now().Add(patience)))
			all, ended := make(chan struct{}), make(chan error, 1)
			go func() { ended <- f.drain(last, all) }()
			var part bytes.Buffer
			framer := http2.NewFramer(&part, nil)
			framer.AllowIllegalWrites = true
			var err error
			for n := uint32(0); n < test.parts && err == nil; n++ {
				if test.frames(framer, n); part.Len() > 64<<10 || n == test.parts-1 {
					_, err = f.conn.Write(part.Bytes())
					part.Reset()
				}
			}
			if err == nil {
				_, _ = f.conn.Write(ping(t, last)) // fails if the gateway has ended the connection
			}
			// Memory is measured after the gateway has read the whole flood or has ended the connection.
			select {
			case <-all:
				require.False(t, test.ends)
			case err := <-ended:
				require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
				ended <- err
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), test.bound)
			conn, in := r.dial(t)
			sound(t, conn, in, "echo.local", "after")
			require.NoError(t, conn.Close())
			require.NoError(t, f.conn.Close())
			require.Error(t, <-ended)
		})
	}
}
