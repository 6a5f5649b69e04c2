package gateway_test

import (
	"bytes"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

// What one connection of HTTP/2 sends without end costs memory that has a bound, and others are served.
func TestFloodsOfHTTP2AreBounded(t *testing.T) {
	// Of requests, a connection may have a thousand at a time, with a header of 64 KiB each.
	const bound, boundOfHeaders = 16 << 20, 96 << 20
	header := block([]string{":method: GET", ":scheme: http", ":authority: echo.local", ":path: /flood"})
	large := block([]string{"x: " + strings.Repeat("y", 8<<10)})
	cases := map[string]struct {
		// frames writes a part of the flood, the first with n 0.
		frames func(f *http2.Framer, n uint32)
		parts  uint32
		// ends: the gateway ends the connection.
		ends bool
	}{
		"headers that go on": {func(f *http2.Framer, n uint32) {
			if n == 0 {
				_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: header})
				return
			}
			_ = f.WriteContinuation(1, false, large)
		}, 5000, true},
		"empty parts of a header": {func(f *http2.Framer, n uint32) {
			if n == 0 {
				_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: header})
				return
			}
			_ = f.WriteContinuation(1, false, nil)
		}, 100_000, false},
		"pings": {func(f *http2.Framer, _ uint32) { _ = f.WritePing(false, [8]byte{}) }, 100_000, false},
		"settings": {func(f *http2.Framer, n uint32) {
			_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: n})
		}, 50_000, false},
		"empty data": {func(f *http2.Framer, n uint32) {
			if n == 0 {
				_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: header, EndHeaders: true})
				return
			}
			_ = f.WriteData(1, false, nil)
		}, 50_000, false},
		"priorities": {func(f *http2.Framer, n uint32) {
			_ = f.WritePriority(2*n+1, http2.PriorityParam{StreamDep: 0, Weight: 1})
		}, 50_000, false},
		"window updates": {func(f *http2.Framer, _ uint32) { _ = f.WriteWindowUpdate(0, 1) }, 50_000, false},
		"more streams than there may be": {func(f *http2.Framer, n uint32) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*n + 1, BlockFragment: header, EndHeaders: true})
		}, 20_000, false},
		"large headers": {func(f *http2.Framer, n uint32) {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*n + 1, BlockFragment: header})
			for range 12 {
				_ = f.WriteContinuation(2*n+1, false, large)
			}
			_ = f.WriteContinuation(2*n+1, true, nil)
		}, 500, false},
	}
	r := start(t, nil)
	instance := startRecorder(t)
	r.put(t, echo(instance.address))
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			f := r.frames(t)
			require.NoError(t, f.conn.SetDeadline(time.Now().Add(patience)))
			read := make(chan struct{})
			go func() {
				defer close(read)
				_, _ = io.Copy(io.Discard, f.conn)
			}()
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
			if test.ends {
				require.Error(t, err)
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			limit := int64(bound)
			if name == "large headers" {
				limit = boundOfHeaders
			}
			require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), limit)
			conn, in := r.dial(t)
			sound(t, conn, in, "echo.local", "after")
			require.NoError(t, conn.Close())
			require.NoError(t, f.conn.Close())
			<-read
		})
	}
}
