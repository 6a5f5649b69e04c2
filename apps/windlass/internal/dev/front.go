package dev

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"

	"golang.org/x/sync/errgroup"

	"github.com/windlass-run/windlass/pkg/certfile"
	"github.com/windlass-run/windlass/pkg/localstack/restate"
)

// restateFront is the program that adds TLS to Restate, whose server has no TLS on its ports for clients.
// Restate then listens only on sockets in the data directory.
func restateFront(ctx context.Context, args []string) error {
	var f flag.FlagSet
	dir := f.String("dir", "", "directory of the server")
	ingress := f.String("ingress", "", "host:port")
	admin := f.String("admin", "", "host:port")
	pair := f.String("pair", "", "PEM file with certificate and key")
	if err := f.Parse(args); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	config, err := certfile.ServerFlags{PairFlags: certfile.PairFlags{Cert: *pair, Key: *pair}}.Config(certfile.Listener{}, certfile.NewFiles(log))
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for address, socket := range map[string]string{*ingress: restate.IngressSocket(*dir), *admin: restate.AdminSocket(*dir)} {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("listen before Restate: %w", err)
		}
		group.Go(func() error { return restate.Front{Listener: listener, TLS: config, Socket: socket}.Serve(ctx) })
	}
	return group.Wait()
}

// frontReady asks Restate for its health through the front.
func frontReady(ctx context.Context, caFile, ingressURL, adminURL string) error {
	config, err := clientTLS(caFile)
	if err != nil {
		return err
	}
	return restate.PingTLS(ctx, config, ingressURL, adminURL)
}

// clientTLS returns a configuration that trusts the CA in the file, or nil without a file.
func clientTLS(caFile string) (*tls.Config, error) {
	if caFile == "" {
		return nil, nil //nolint:nilnil // there is no TLS
	}
	return certfile.ClientFlags{ServerCA: caFile}.Config("https://127.0.0.1", nil)
}
