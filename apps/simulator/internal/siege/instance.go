package siege

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/simulator/internal/child"
	"github.com/windlass-run/windlass/apps/simulator/internal/instance"
)

// poison is an answer whose header has very many fields, and a Connection field that names one.
var poison = []byte("HTTP/1.1 200 OK\r\nConnection: x-nothing\r\n" + strings.Repeat("a:b\r\n", 50_000) + "Content-Length: 0\r\n\r\n")

// InstancesCommand runs the simulator's binary as a number of instances: COUNT.
const InstancesCommand = "run-attacked"

// Instances runs instances until its standard input ends, and writes a line with their addresses to out.
func Instances(ctx context.Context, args []string, out io.Writer) (err error) {
	if len(args) != 1 {
		return fmt.Errorf("%s COUNT: %d arguments", InstancesCommand, len(args))
	}
	count, err := strconv.Atoi(args[0])
	if err != nil || count < 1 {
		return fmt.Errorf("%s: the count %q is no number above 0", InstancesCommand, args[0])
	}
	ctx, cancel, err := child.Become(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	var all []string
	var stops []func() error
	defer func() {
		for _, stop := range stops {
			err = errors.Join(err, stop())
		}
	}()
	for range count {
		address, stop, startErr := startInstance(ctx)
		if startErr != nil {
			return startErr
		}
		all, stops = append(all, address), append(stops, stop)
	}
	if _, err := fmt.Fprintln(out, strings.Join(all, " ")); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// startInstance starts an instance. It answers the path /poison with poison, and /stream with a stream that does
// not end. It answers other paths when it has read the request.
func startInstance(ctx context.Context) (address string, stop func() error, err error) {
	return instance.Serve(ctx, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/poison":
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			_, _ = conn.Write(poison) // the gateway may refuse it midway
			_ = conn.Close()          // the answer is at its end
		case "/stream":
			if _, err := io.WriteString(w, "data: begun\n\n"); err == nil && http.NewResponseController(w).Flush() == nil {
				<-r.Context().Done()
			}
		default:
			if _, err := io.Copy(io.Discard, r.Body); err == nil {
				_, _ = io.WriteString(w, "done")
			}
		}
	}))
}

// writeCertificate writes a certificate for hosts, and its key.
func writeCertificate(cert, key string, hosts ...string) error {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: hosts,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		return err
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}), 0o600),
	)
}
