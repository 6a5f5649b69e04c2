package xds

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/windlass-run/windlass/pkg/strict"
)

// inTurn makes the TLS handshakes of clients. The listener's table of connections limits how many
// run at the same time.
type inTurn struct {
	credentials.TransportCredentials

	ctx context.Context //nolint:containedctx // ServerHandshake has no context parameter
}

// ServerHandshake implements credentials.TransportCredentials.
func (c inTurn) ServerHandshake(raw net.Conn) (conn net.Conn, info credentials.AuthInfo, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, handshakeTimeout)
	defer cancel()
	_, err = strict.InTurn(ctx, raw, func(turns net.Conn) error {
		conn, info, err = c.TransportCredentials.ServerHandshake(turns)
		return err
	})
	return conn, info, err
}

// Clone implements credentials.TransportCredentials.
func (c inTurn) Clone() credentials.TransportCredentials {
	return inTurn{c.TransportCredentials.Clone(), c.ctx}
}
