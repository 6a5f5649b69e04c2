package gateway

import (
	"context"
	"crypto"
	"crypto/tls"
	"io"
	"time"

	"github.com/windlass-run/windlass/pkg/conns"
)

// turn is the slot of a handshake of HTTP/3 (see conns.Handshake). A handshake that waits for its client should hold no
// slot, but quic-go does not say when a handshake begins to wait. So the handshake holds the slot until it gets its
// certificate, and again while it signs. Some handshakes get no certificate, because they resume a session or wait for
// another key of the client. A timer takes their slot after keyExchange.
type turn struct {
	handshake *conns.Handshake
	pauses    *time.Timer
}

// keyExchange is longer than a processor needs for a key exchange.
const keyExchange = 2 * time.Millisecond

// beginHandshake implements tls.Config.GetConfigForClient. It waits for the handshake's turn.
func (s *http3Server) beginHandshake(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	h, err := s.conns.BeginHandshake(hello.Context(), "http3", hello.Conn.RemoteAddr(), time.Now().Add(s.header/2))
	if err == nil {
		clientOf(hello.Context()).turn = turn{h, time.AfterFunc(keyExchange, h.Pause)}
	}
	return nil, err
}

// signInTurn returns a certificate whose key signs when the handshake has a slot.
func signInTurn(hello *tls.ClientHelloInfo, get func(*tls.ClientHelloInfo) (*tls.Certificate, error)) (*tls.Certificate, error) {
	t := clientOf(hello.Context()).turn
	if t.pauses != nil {
		t.pauses.Stop()
	}
	t.handshake.Pause()
	cert, err := get(hello) // this may wait for an ACME server
	if err != nil {
		return nil, err
	}
	key, ok := cert.PrivateKey.(crypto.Signer)
	if !ok {
		return cert, nil
	}
	inTurn := *cert
	inTurn.PrivateKey = signer{key, hello.Context(), t.handshake}
	return &inTurn, nil
}

type signer struct {
	crypto.Signer

	ctx       context.Context //nolint:containedctx // Sign has no context parameter
	handshake *conns.Handshake
}

// Sign implements crypto.Signer.
func (s signer) Sign(random io.Reader, digest []byte, options crypto.SignerOpts) ([]byte, error) {
	if err := s.handshake.Resume(s.ctx); err != nil {
		return nil, err
	}
	defer s.handshake.Pause()
	return s.Signer.Sign(random, digest, options)
}
