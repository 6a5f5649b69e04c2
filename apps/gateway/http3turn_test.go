package gateway

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"github.com/quic-go/quic-go/http3"
	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/conns"
)

func TestHTTP3_HandshakesWaitForTheirTurn(t *testing.T) {
	const patience = time.Minute
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	certificate.Close()
	table := conns.New(conns.Limits{})
	free, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	address := free.LocalAddr().String()
	require.NoError(t, free.Close())
	answers := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "answer") })
	s := newHTTP3(answers, address, &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return &certificate.TLS.Certificates[0], nil
	}}, Config{Log: slog.New(slog.DiscardHandler), HeaderTimeout: 2 * patience, MaxHeaderBytes: 4 << 10}, table)
	stop := s.startServing(t.Context(), t.Context())
	t.Cleanup(func() {
		ended, end := context.WithCancel(context.Background())
		end()
		stop(ended)
	})
	var slots []*conns.Handshake
	for range runtime.GOMAXPROCS(0) {
		h, err := table.BeginHandshake(t.Context(), "other", nil, time.Now().Add(patience))
		require.NoError(t, err)
		slots = append(slots, h)
	}
	get := func() error {
		transport := &http3.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		defer transport.Close()
		res, err := (&http.Client{Transport: transport, Timeout: patience}).Get("https://" + address)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		_, err = io.Copy(io.Discard, res.Body)
		return err
	}
	got := make(chan error, 1)
	go func() { got <- get() }()
	require.Eventually(t, table.HandshakesWait, patience, time.Millisecond)
	require.Empty(t, got)
	for _, h := range slots {
		h.Pause()
	}
	require.NoError(t, <-got)
	for range 2 * runtime.GOMAXPROCS(0) { // each handshake gives its slot back
		require.NoError(t, get())
	}
	for range runtime.GOMAXPROCS(0) {
		_, err := table.BeginHandshake(t.Context(), "other", nil, time.Now())
		require.NoError(t, err)
	}
}
