package gateway_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/summerwind/h2spec/config"
	"github.com/summerwind/h2spec/generic"
	"github.com/summerwind/h2spec/hpack"
	spechttp2 "github.com/summerwind/h2spec/http2"
	"github.com/summerwind/h2spec/spec"
)

// knownOfHTTP2 has the cases of h2spec that net/http does not pass, and why that is not a fault of the gateway.
var knownOfHTTP2 = map[string]string{
	"http2/3.5/2":     "a listener without TLS reads bytes that are not an HTTP/2 preface as HTTP/1, and answers 400",
	"http2/4.2/3":     "net/http accepts frames of up to 1 MiB, and says so in its SETTINGS",
	"http2/6.5.3/1":   "net/http ends a connection whose SETTINGS has a value twice",
	"http2/8.1.2.2/1": "net/http answers 400 to connection-specific fields, but RFC 9113 requires a stream error",
	"http2/8.1.2.2/2": "net/http answers 400 to connection-specific fields, but RFC 9113 requires a stream error",
}

// TestHTTP2_Conformance runs h2spec against a gateway. The cases of h2spec come from RFC 7540 and 7541.
func TestHTTP2_Conformance(t *testing.T) { //nolint:tparallel // h2spec has one standard output
	t.Parallel()
	// Some cases pass if no frame comes within this time. Other cases wait for the end of a connection, which net/http
	// closes a second after its GOAWAY.
	const silence = 2 * time.Second
	// h2spec writes its progress to the standard output.
	stdout := os.Stdout
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	os.Stdout = null
	defer func() { os.Stdout = stdout; _ = null.Close() }()
	for name, groups := range map[string][]*spec.TestGroup{
		"TLS": {generic.Spec(), spechttp2.Spec(), hpack.Spec()},
		// Other names are engines: see engineOf. With TLS, net/http serves both engines.
		"epoll": {generic.Spec()},
		"net":   {generic.Spec()},
	} {
		t.Run(name, func(t *testing.T) {
			r := startTLS(t)
			app := echo(instance(t, func(w http.ResponseWriter, q *http.Request) {
				_, _ = io.Copy(io.Discard, q.Body)
				_, _ = io.WriteString(w, strings.Repeat("x", 100))
			}))
			app.Hosts = []string{"localhost"}
			r.put(t, app)
			cfg := &config.Config{Host: "localhost", Path: "/", Timeout: silence, MaxHeaderLen: 4000, TLS: name == "TLS", Insecure: true}
			address := r.gateway.Addresses()[0]
			if cfg.TLS {
				address = r.gateway.Addresses()[1]
			}
			cfg.Port = address.(*net.TCPAddr).Port
			ran := 0
			var look func(g *spec.TestGroup)
			look = func(g *spec.TestGroup) {
				for i, test := range g.Tests {
					if test.Result == nil {
						continue
					}
					ran++
					if name := fmt.Sprintf("%s/%d", g.ID(), i+1); test.Result.Failed && knownOfHTTP2[name] == "" {
						t.Errorf("%s %s: %v", name, test.Desc, test.Result.Error)
					}
				}
				for _, g := range g.Groups {
					look(g)
				}
			}
			for _, group := range groups {
				group.Test(cfg)
				look(group)
			}
			require.Greater(t, ran, 40)
		})
	}
}
