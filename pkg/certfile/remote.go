package certfile

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"time"
)

// RemoteFlags are flags for clients of servers other than Windlass, under a prefix such as "restate-".
type RemoteFlags struct {
	CA   string `name:"ca" help:"PEM file with the CAs of the server's certificate. Read again when it changes. Default: the CAs of this machine." type:"path" env:"CA"`
	Cert string `name:"cert" help:"PEM file with a client certificate, for a server that asks for one. Read again when it changes." type:"path" env:"CERT"`
	Key  string `name:"key" help:"PEM file with the key of that certificate." type:"path" env:"KEY"`
}

func (f RemoteFlags) clientOf(prefix string) Client {
	flag := "--" + prefix
	return Client{CA: f.CA, Cert: f.Cert, Key: f.Key, CAFlag: flag + "ca", CertFlag: flag + "cert", KeyFlag: flag + "key"}
}

// Config returns the configuration of a client of one host.
func (f RemoteFlags) Config(prefix, host string, files *Files) (*tls.Config, error) {
	return f.clientOf(prefix).Config("https://"+host, files)
}

// handshakeTimeout limits the time to connect to a server, including the TLS handshake.
const handshakeTimeout = 5 * time.Second

// Transport opens the files, and returns a function that makes a transport use them for https URLs of every
// host. Such a transport uses HTTP/1.1.
func (f RemoteFlags) Transport(prefix string, files *Files) (func(*http.Transport), error) {
	opened, err := f.clientOf(prefix).open(files)
	if err != nil {
		return nil, err
	}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
		defer cancel()
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, fmt.Errorf("address %q: %w", address, err)
		}
		config := opened.clientConfig(host)
		config.ServerName = host
		return (&tls.Dialer{Config: config}).DialContext(ctx, network, address)
	}
	return func(t *http.Transport) { t.DialTLSContext = dial }, nil
}

// MetricsFlags are flags for --metrics-listen, which has no TLS without them.
type MetricsFlags struct {
	PairFlags `embed:"" prefix:"tls-" set:"listener=--metrics-listen"`
	ClientCA  string `name:"client-ca" help:"PEM file with the CAs of client certificates, which probes of /healthz and /readyz then need, too. Default: clients need none." type:"path" env:"CLIENT_CA"`
	TokenFile string `name:"token-file" help:"File with a bearer token that /metrics and /debug/pprof require. Read for each request. Default: none." type:"path" env:"TOKEN_FILE"`
}

// Config returns the configuration of the listener, or nil without TLS.
func (f MetricsFlags) Config(files *Files) (*tls.Config, error) {
	return ServerFlags{PairFlags: f.PairFlags, ClientCA: f.ClientCA, Insecure: true}.Config(Listener{Prefix: "metrics-", Flag: "--metrics-listen"}, files)
}
