package restate

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"path/filepath"
	"slices"
	"sync"
)

// nodeName is the name of the server's node in its cluster. It is part of the paths of sockets.
const nodeName = "windlass"

// maxSocketPath is the maximum length in bytes of the path of a Unix socket.
const maxSocketPath = 107

// IngressSocket returns the path of the ingress socket of a server with Config.Sockets, by its directory.
func IngressSocket(dir string) string { return filepath.Join(dir, "data", nodeName, "ingress.sock") }

// AdminSocket returns the path of the admin API's socket of a server with Config.Sockets.
func AdminSocket(dir string) string { return filepath.Join(dir, "data", nodeName, "admin.sock") }

// NewIdentity returns a new private key for the file Config.IdentityKey, in PEM.
func NewIdentity() ([]byte, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("request identity of Restate: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("request identity of Restate: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// PublicIdentity returns the public key (publickeyv1_...) of a key of NewIdentity. With it, services verify calls.
func PublicIdentity(keyPEM []byte) (string, error) {
	block, _ := pem.Decode(keyPEM)
	if block == nil {
		return "", errors.New("request identity of Restate: the file has no key in PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return "", fmt.Errorf("request identity of Restate: %w", err)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return "", errors.New("request identity of Restate: the key is not an Ed25519 key")
	}
	return "publickeyv1_" + base58(key.Public().(ed25519.PublicKey)), nil //nolint:forcetypeassert // by its documentation
}

const base58Digits = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

// base58 returns data in Bitcoin's base58 encoding, which Restate uses for public keys.
func base58(data []byte) string {
	var out []byte
	remainder, digit, base := new(big.Int).SetBytes(data), new(big.Int), big.NewInt(int64(len(base58Digits)))
	for remainder.Sign() > 0 {
		remainder.DivMod(remainder, base, digit)
		out = append(out, base58Digits[digit.Int64()])
	}
	for _, b := range data {
		if b != 0 {
			break
		}
		out = append(out, base58Digits[0])
	}
	slices.Reverse(out)
	return string(out)
}

// Front accepts TLS connections, and forwards their bytes to a Unix socket.
type Front struct {
	// Listener accepts TCP connections, to which Front adds TLS. Serve closes it.
	Listener net.Listener
	TLS      *tls.Config
	// Socket is the path of the Unix socket.
	Socket string
}

// Serve forwards connections until ctx ends, and then closes all of them.
func (f Front) Serve(ctx context.Context) error {
	var connections sync.WaitGroup
	defer connections.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = f.Listener.Close() })
	defer stop()
	for {
		client, err := f.Listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("front of %s: %w", f.Socket, err)
		}
		connections.Go(func() { f.forwardConn(ctx, tls.Server(client, f.TLS)) })
	}
}

// forwardConn copies bytes in both directions until one side ends its stream.
func (f Front) forwardConn(ctx context.Context, client *tls.Conn) {
	defer func() { _ = client.Close() }()
	server, err := new(net.Dialer).DialContext(ctx, "unix", f.Socket)
	if err != nil {
		return // the client sees the end of its connection, as if the server were stopped
	}
	defer func() { _ = server.Close() }()
	stop := context.AfterFunc(ctx, func() { _, _ = client.NetConn().Close(), server.Close() })
	defer stop()
	var directions sync.WaitGroup
	pipe := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		_, _ = to.Close(), from.Close()
	}
	directions.Go(func() { pipe(server, client) })
	directions.Go(func() { pipe(client, server) })
	directions.Wait()
}
