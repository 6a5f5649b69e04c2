package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"
)

// httpsClient trusts the CAs in the file. The certificate of an address is for the host that is asked
// for there, without its port.
func httpsClient(caFile, address, host string) (*http.Client, error) {
	data, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s has no CA", caFile)
	}
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = address
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: name}
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}}, nil
}
