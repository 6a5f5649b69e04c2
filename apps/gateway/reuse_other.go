//go:build !linux

package gateway

import (
	"context"
	"net"
)

// listenShared binds address only for this process, because only Linux spreads connections over the
// processes that share one.
func listenShared(ctx context.Context, address string) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
}

func handOver(net.Listener) error { return nil }

// hasQueued returns false, because only Linux reports the length of the queue.
func hasQueued(net.Listener) bool { return false }
