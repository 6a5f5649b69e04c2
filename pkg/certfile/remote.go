package certfile

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// RemoteFlags are about servers that are not Windlass' own, under a prefix such as
// "restate-".
type RemoteFlags struct {
	CA   string `name:"ca" help:"PEM file with the CAs of the server's certificate. Read again when it changes. Default: the CAs of this machine." type:"path" env:"CA"`
	Cert string `name:"cert" help:"PEM file with a client certificate, for a server that asks for one. Read again when it changes." type:"path" env:"CERT"`
	Key  string `name:"key" help:"PEM file with the key of that certificate." type:"path" env:"KEY"`
}

func (f RemoteFlags) client(prefix string) Client {
	flag := "--" + prefix
	return Client{CA: f.CA, Cert: f.Cert, Key: f.Key, CAFlag: flag + "ca", CertFlag: flag + "cert", KeyFlag: flag + "key"}
}

// Config of a client of one host, nil for the defaults.
func (f RemoteFlags) Config(prefix, host string, log *slog.Logger) (*tls.Config, error) {
	return f.client(prefix).Config("https://"+host, log)
}

// handshakeTimeout bounds connecting to a server, and the handshake.
const handshakeTimeout = 5 * time.Second

// Apply has the transport, which speaks HTTP/1.1 then, use the files for https URLs of every
// host.
func (f RemoteFlags) Apply(t *http.Transport, prefix string, log *slog.Logger) error {
	config, err := f.Config(prefix, "localhost", log)
	if config == nil || err != nil {
		return err
	}
	roots := &Pool{Path: f.CA, Log: log}
	certificate := config.GetClientCertificate
	t.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
		defer cancel()
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, fmt.Errorf("address %q: %w", address, err)
		}
		one := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host, GetClientCertificate: certificate}
		if f.CA != "" {
			if one.RootCAs, err = roots.Get(); err != nil {
				return nil, err
			}
		}
		return (&tls.Dialer{Config: one}).DialContext(ctx, network, address)
	}
	return nil
}

// MetricsFlags are about --metrics-listen, which has no TLS without them.
type MetricsFlags struct {
	Cert      string `name:"tls-cert" help:"PEM file with the certificate of --metrics-listen, and the CAs that it chains to. Read again when it changes. Default: no TLS." type:"path" env:"TLS_CERT"`
	Key       string `name:"tls-key" help:"PEM file with the key of that certificate." type:"path" env:"TLS_KEY"`
	ClientCA  string `name:"client-ca" help:"PEM file with the CAs of client certificates, which probes of /healthz and /readyz then need, too. Default: clients need none." type:"path" env:"CLIENT_CA"`
	TokenFile string `name:"token-file" help:"File with a bearer token that /metrics and /debug/pprof ask for, read for each request. Default: none." type:"path" env:"TOKEN_FILE"`
}

// Config of the listener, nil for none.
func (f MetricsFlags) Config(log *slog.Logger) (*tls.Config, error) {
	return ServerFlags{Cert: f.Cert, Key: f.Key, ClientCA: f.ClientCA, Insecure: true}.Config(Listener{Prefix: "metrics-", Flag: "--metrics-listen"}, log)
}
