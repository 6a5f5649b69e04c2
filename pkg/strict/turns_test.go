package strict_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/conns"
	"github.com/windlass-run/windlass/pkg/strict"
)

// inTurns serves TLS with a table, and closes each connection after its handshake.
type inTurns struct {
	table   *conns.Table
	address string
	client  *tls.Config
	failed  atomic.Int64
	// slow is closed when the certificate for slow.example.com is available.
	slow chan struct{}
}

func startInTurns(t *testing.T, handshake time.Duration) *inTurns {
	config := httptest.NewUnstartedServer(nil)
	config.StartTLS()
	config.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &inTurns{
		table: conns.New(conns.Limits{}), address: l.Addr().String(), slow: make(chan struct{}),
		client: &tls.Config{InsecureSkipVerify: true, ServerName: "example.com"},
	}
	secure := strict.ListenTLS(s.table.ListenAs("test", l), strict.TLSConfig{
		TLS: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if hello.ServerName == "slow.example.com" {
				<-s.slow
			}
			return &config.TLS.Certificates[0], nil
		}},
		MaxHead: maxHead, Handshake: handshake, Failed: func(net.Addr, error) { s.failed.Add(1) },
	})
	t.Cleanup(func() { require.NoError(t, secure.Close()) })
	go func() {
		for {
			conn, err := secure.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	return s
}

// connect makes a handshake, and returns its error.
func (s *inTurns) connect(config *tls.Config) error {
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: patience}, Config: config}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := dialer.DialContext(ctx, "tcp", s.address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// withoutAnswer is a client's connection whose reads fail once bytes have arrived.
type withoutAnswer struct{ net.Conn }

func (c withoutAnswer) Read([]byte) (int, error) {
	_, err := c.Conn.Read(make([]byte, 1))
	return 0, errors.Join(err, io.ErrNoProgress)
}

func TestListenTLS_KeepsNoSlotWhileAClientWaits(t *testing.T) {
	t.Parallel()
	hello := []byte{22, 3, 1, 2, 0, 1}
	cases := map[string]func(t *testing.T, s *inTurns, conn net.Conn){
		"before it sends anything": func(*testing.T, *inTurns, net.Conn) {},
		"within its first record": func(t *testing.T, _ *inTurns, conn net.Conn) {
			_, err := conn.Write(hello)
			require.NoError(t, err)
		},
		"after the server's answer": func(t *testing.T, s *inTurns, conn net.Conn) {
			require.ErrorIs(t, tls.Client(withoutAnswer{conn}, s.client).Handshake(), io.ErrNoProgress)
		},
		"after the answer of TLS 1.2": func(t *testing.T, s *inTurns, conn net.Conn) {
			config := s.client.Clone()
			config.MaxVersion = tls.VersionTLS12
			require.ErrorIs(t, tls.Client(withoutAnswer{conn}, config).Handshake(), io.ErrNoProgress)
		},
		"for a certificate that is late": func(_ *testing.T, s *inTurns, conn net.Conn) {
			config := s.client.Clone()
			config.ServerName = "slow.example.com"
			go func() { _ = tls.Client(conn, config).Handshake() }() // the goroutine ends with the connection
		},
	}
	for name, stop := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startInTurns(t, 4*patience)
			defer close(s.slow)
			for range 4 * runtime.GOMAXPROCS(0) {
				conn, err := net.Dial("tcp", s.address)
				require.NoError(t, err)
				t.Cleanup(func() { _ = conn.Close() })
				stop(t, s, conn)
			}
			require.NoError(t, s.connect(s.client))
		})
	}
}

func TestListenTLS_ClosesAClientThatGetsNoTurn(t *testing.T) {
	t.Parallel()
	s := startInTurns(t, time.Second)
	var slots []*conns.Handshake
	for range runtime.GOMAXPROCS(0) {
		h, err := s.table.BeginHandshake(t.Context(), "other", nil, time.Now().Add(patience))
		require.NoError(t, err)
		slots = append(slots, h)
	}
	require.ErrorIs(t, s.connect(s.client), io.EOF)
	figures := s.table.Handshakes()
	require.Equal(t, "test", figures[1].Listener)
	require.Equal(t, map[string]int64{"queue": 0, "address": 0, "late": 1}, figures[1].Refused)
	require.Zero(t, s.failed.Load(), "refusals are counted, because a line for each would be a flood, too")
	for _, h := range slots {
		h.Pause()
	}
	require.NoError(t, s.connect(s.client))
	require.Zero(t, s.table.Handshakes()[1].Waiting)
}
