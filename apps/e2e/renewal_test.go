package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/windlass-run/windlass/pkg/authority"
	"github.com/windlass-run/windlass/pkg/localstack/mariadb"
	windlassv1 "github.com/windlass-run/windlass/proto/gen/windlass/v1"
)

// TestCertificates_AreRenewedUnderLoad replaces the certificates of all parts and their CA: first both
// CAs are trusted, then the certificates are replaced, then the old CA is taken out.
func TestCertificates_AreRenewedUnderLoad(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackConfig{tls: true, gateways: true, replicas: 2})
	cas, err := rootCAs()
	require.NoError(t, err)
	s.deployReady(t, "echo", spec())
	s.deployReady(t, "slow", spec(regions(us), args("--token-rate", "2")))
	slowHost := s.host(t, "slow", windlassv1.Route_KIND_STABLE, 0)
	s.eventually(t, "the slow app answers", func(ctx context.Context) error { return complete(ctx, s.gateways[us], slowHost) })
	host := s.host(t, "echo", windlassv1.Route_KIND_STABLE, 0)
	for _, region := range s.cfg.regions {
		s.eventually(t, "the gateway of "+region+" answers", func(ctx context.Context) error { return complete(ctx, s.gateways[region], host) })
	}

	load := s.callers(host)
	watching := s.watchOpen(t, "echo")
	// This answer takes 50 s, and is under way during the whole renewal.
	long := make(chan error, 1)
	begun := time.Now()
	var lasted time.Duration
	go func() {
		err := completeText(t.Context(), caller, s.gateways[us], slowHost, strings.Repeat("word ", 100))
		lasted = time.Since(begun)
		long <- err
	}()
	ended := s.streamsEnded(t)

	// The third CA only shows, by its expiry in the metric, that a program has read the file.
	early, err := authority.New("early", time.Now().AddDate(0, 0, -2))
	require.NoError(t, err)
	s.trustInStack(cas[0], cas[1], early)
	s.restart(partRestate) // Restate reads the CAs at its start
	s.waitTrust(t, early)
	for _, part := range s.order {
		s.certify(cas[1], part)
	}
	require.NoError(t, s.database.ReloadTLS(t.Context()))
	s.eventually(t, "new connections see certificates of the new CA", func(ctx context.Context) error { return s.issuedBy(ctx, cas[1]) })
	s.trustInStack(cas[1])
	s.restart(partRestate)
	s.waitTrust(t, cas[1])
	replaced := time.Since(begun)

	require.NoError(t, s.issuedBy(t.Context(), cas[1]))
	s.deployReady(t, "second", spec(regions(us)))
	require.Equal(t, ended, s.streamsEnded(t), "no stream of an agent ended")
	require.NoError(t, watching(), "WatchApp goes on")
	require.NoError(t, <-long, "an answer that lasted the whole time is complete")
	require.Greater(t, lasted, replaced, "the answer must last the whole time")
	load.stop()
	load.requireNoneFailed(t, "all certificates and their CA were replaced")
	require.Positive(t, load.count())
}

// watchOpen opens WatchApp. The returned function returns an error if the stream has ended.
func (s *stack) watchOpen(t *testing.T, app string) func() error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := s.owner.apps.WatchApp(ctx, &windlassv1.WatchAppRequest{App: named(app)})
	require.NoError(t, err)
	end := make(chan error, 1)
	go func() {
		for stream.Receive() {
		}
		end <- errors.Join(errors.New("the stream ended"), stream.Err())
	}()
	t.Cleanup(func() { cancel(); _ = stream.Close() })
	return func() error {
		select {
		case err := <-end:
			return err
		default:
			return nil
		}
	}
}

var endedWatch = regexp.MustCompile(`(?m)^rpc_server_requests_total\{.*procedure="[^"]*AgentService/Watch".*\} (\S+)$`)

// streamsEnded returns the counts of ended agent streams, by replica of the control plane.
func (s *stack) streamsEnded(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, replica := range []string{partControlPlane, second} {
		var metrics []byte
		s.eventually(t, "the metrics of "+replica, func(ctx context.Context) (err error) {
			_, metrics, err = get(ctx, s.metrics[replica]+"/metrics")
			return err
		})
		for _, m := range endedWatch.FindAllStringSubmatch(string(metrics), -1) {
			out[replica] = append(out[replica], m[0])
		}
	}
	return out
}

// waitTrust waits until every program has read the file of CAs. ca is the CA in the file that expires first.
func (s *stack) waitTrust(t *testing.T, ca *authority.Authority) {
	t.Helper()
	block, _ := pem.Decode(ca.CertPEM())
	cert, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	metric := regexp.MustCompile(`(?m)^windlass_certificate_not_after_seconds\{file="` + regexp.QuoteMeta(s.caFile()) + `",.*\} (\S+)$`)
	for part, url := range s.metrics {
		s.eventually(t, part+" has read the CAs", func(ctx context.Context) error {
			_, metrics, err := get(ctx, url+"/metrics")
			if err != nil {
				return err
			}
			found := metric.FindAllStringSubmatch(string(metrics), -1)
			if len(found) == 0 {
				return errors.New("the metric of the file is missing")
			}
			for _, m := range found {
				if end, err := strconv.ParseFloat(m[1], 64); err != nil || int64(end) != cert.NotAfter.Unix() {
					return fmt.Errorf("%s, and not %d", m[0], cert.NotAfter.Unix())
				}
			}
			return nil
		})
	}
}

// issuedBy returns nil if new connections get certificates of the CA.
func (s *stack) issuedBy(ctx context.Context, ca *authority.Authority) error {
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: ca.Pool()}
	addresses := map[string]string{
		"api": hostOf(s.url), "ingress": address(s.restateConfig.IngressPort), "admin": address(s.restateConfig.AdminPort),
	}
	for part, url := range s.metrics {
		addresses["metrics of "+part] = hostOf(url)
	}
	for region, url := range s.gateways {
		addresses["gateway "+region] = hostOf(url)
	}
	for what, at := range addresses {
		conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", at)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if err := conn.Close(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return mariadb.Ping(ctx, s.mariadbConfig.Dir, s.mariadbConfig.Port, s.caFile())
}
