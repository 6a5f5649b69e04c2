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

// nodeName is the server's node name, which is part of the paths of sockets.
const nodeName = "windlass"

// maxSocketPath is the maximum length in bytes of a socket's path.
const maxSocketPath = 107

// IngressSocket returns the path of the ingress socket of a server with Config.Sockets, by its directory.
func IngressSocket(dir string) string { return filepath.Join(dir, "data", nodeName, "ingress.sock") }

// AdminSocket returns the path of the admin API's socket of a server with Config.Sockets.
func AdminSocket(dir string) string { return filepath.Join(dir, "data", nodeName, "admin.sock") }

// NewIdentity returns a new key for Config.IdentityKey, in PEM.
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

// PublicIdentity returns the public key (publickeyv1_...) with which services verify calls.
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
		return "", errors.New("request identity of Restate: the key is not of Ed25519")
	}
	return "publickeyv1_" + base58(key.Public().(ed25519.PublicKey)), nil //nolint:forcetypeassert // by its documentation
}

const base58Digits = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

// base58 returns data in Bitcoin's encoding, which Restate uses for public keys.
func base58(data []byte) string {
	var out []byte
	rest, digit, base := new(big.Int).SetBytes(data), new(big.Int), big.NewInt(int64(len(base58Digits)))
	for rest.Sign() > 0 {
		rest.DivMod(rest, base, digit)
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

// Front accepts TLS connections and forwards them to a socket.
type Front struct {
	// Listener is a listener without TLS. Serve closes it.
	Listener net.Listener
	TLS      *tls.Config
	Socket   string
}

// Serve serves until ctx ends, and then closes all connections.
func (f Front) Serve(ctx context.Context) error {
	var open sync.WaitGroup
	defer open.Wait()
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
		open.Go(func() { f.join(ctx, tls.Server(client, f.TLS)) })
	}
}

func (f Front) join(ctx context.Context, client *tls.Conn) {
	defer func() { _ = client.Close() }()
	server, err := new(net.Dialer).DialContext(ctx, "unix", f.Socket)
	if err != nil {
		return // the client sees its connection end, as with a stopped server
	}
	defer func() { _ = server.Close() }()
	stop := context.AfterFunc(ctx, func() { _, _ = client.NetConn().Close(), server.Close() })
	defer stop()
	var ways sync.WaitGroup
	pipe := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		_, _ = to.Close(), from.Close()
	}
	ways.Go(func() { pipe(server, client) })
	ways.Go(func() { pipe(client, server) })
	ways.Wait()
}
