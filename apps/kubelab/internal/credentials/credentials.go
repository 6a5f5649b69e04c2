// Package credentials creates and stores the credentials of one cluster's components. They are a certificate
// authority, a serving certificate, the key of service accounts' tokens, and a bearer token for each
// component.
//
// They are created once for each data directory, as a folder that is renamed into place when it is complete.
// So a cluster that keeps its objects also keeps the certificate authority that they contain.
package credentials

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/csv"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// validity is the lifetime of certificates. It is longer than any data directory is in use.
const validity = 10 * 365 * 24 * time.Hour

// User is one identity of the token file.
type User struct {
	Name   string
	Groups []string
}

// The users of the cluster. The controller manager and the scheduler have their usual names, and get their
// rights from the bootstrap policy of RBAC.
var (
	Admin             = User{Name: "kubelab-admin", Groups: []string{"system:masters"}}
	ControllerManager = User{Name: "system:kube-controller-manager"}
	Scheduler         = User{Name: "system:kube-scheduler"}
	// KWOK writes the status and leases of all nodes. The only built-in role for that is a kubelet's, which
	// covers one node.
	KWOK = User{Name: "kubelab-kwok", Groups: []string{"system:masters"}}
)

func users() []User { return []User{Admin, ControllerManager, Scheduler, KWOK} }

// Credentials are the credentials of one cluster, in files.
type Credentials struct {
	dir    string
	ca     []byte
	tokens map[string]string
}

// Ensure reads the credentials in dir, and creates them first if there are none.
func Ensure(dir string) (*Credentials, error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := create(dir); err != nil {
			return nil, fmt.Errorf("make credentials: %w", err)
		}
	}
	c, err := Load(dir)
	if err != nil {
		return nil, fmt.Errorf("%w; remove %s together with the rest of the data directory to start anew", err, dir)
	}
	return c, nil
}

// Load reads the credentials in dir.
func Load(dir string) (*Credentials, error) {
	c := &Credentials{dir: dir, tokens: map[string]string{}}
	var err error
	if c.ca, err = os.ReadFile(c.CAFile()); err != nil {
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	file, err := os.Open(c.TokenFile())
	if err != nil {
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	defer func() { _ = file.Close() }()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	for _, row := range rows {
		if len(row) < 3 {
			return nil, fmt.Errorf("read credentials: %s has a line of %d fields, which must be 3 or more", c.TokenFile(), len(row))
		}
		c.tokens[row[1]] = row[0]
	}
	for _, u := range users() {
		if c.tokens[u.Name] == "" {
			return nil, fmt.Errorf("read credentials: %s has no token of %s", c.TokenFile(), u.Name)
		}
	}
	return c, nil
}

// CAFile returns the path of the certificate authority, in PEM.
func (c *Credentials) CAFile() string { return filepath.Join(c.dir, "ca.crt") }

// CertFile returns the path of the certificate that components serve with on 127.0.0.1.
func (c *Credentials) CertFile() string { return filepath.Join(c.dir, "serving.crt") }

// KeyFile returns the path of CertFile's private key.
func (c *Credentials) KeyFile() string { return filepath.Join(c.dir, "serving.key") }

// ServiceAccountKeyFile returns the path of the private key of service accounts' tokens.
func (c *Credentials) ServiceAccountKeyFile() string {
	return filepath.Join(c.dir, "service-account.key")
}

// TokenFile returns the path of the file for the API server's --token-auth-file.
func (c *Credentials) TokenFile() string { return filepath.Join(c.dir, "tokens.csv") }

// REST returns a user's client configuration for the API server at url. It does not limit queries, because
// the API server has its own limits.
func (c *Credentials) REST(u User, url string) *rest.Config {
	return &rest.Config{
		Host: url, BearerToken: c.tokens[u.Name], UserAgent: "kubelab",
		TLSClientConfig: rest.TLSClientConfig{CAData: c.ca},
		QPS:             -1,
	}
}

// Kubeconfig returns the content of a user's kubeconfig for the API server at url. It refers to no other
// file, so that it can be copied.
func (c *Credentials) Kubeconfig(u User, url string) ([]byte, error) {
	const name = "kubelab"
	return clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: url, CertificateAuthorityData: c.ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {Token: c.tokens[u.Name]}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	})
}

// create creates dir by a rename, so that it is complete if it exists.
func create(dir string) error {
	tmp := dir + ".tmp"
	if err := errors.Join(os.RemoveAll(tmp), os.MkdirAll(tmp, 0o700)); err != nil {
		return err
	}
	files, err := generate(time.Now())
	if err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(tmp, name), content, 0o600); err != nil {
			return err
		}
	}
	return os.Rename(tmp, dir)
}

func generate(now time.Time) (map[string][]byte, error) {
	caKey, _, err := newKey()
	if err != nil {
		return nil, err
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubelab"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(validity),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return nil, err
	}
	servingKey, servingKeyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	serving := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kubelab"},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
	}
	servingDER, err := x509.CreateCertificate(rand.Reader, serving, ca, servingKey.Public(), caKey)
	if err != nil {
		return nil, err
	}
	_, accountKeyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	tokens, err := newTokens()
	if err != nil {
		return nil, err
	}
	caPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})
	return map[string][]byte{
		"ca.crt": caPEM,
		"serving.crt": append(
			pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: servingDER}), caPEM...),
		"serving.key":         servingKeyPEM,
		"service-account.key": accountKeyPEM,
		"tokens.csv":          tokens,
	}, nil
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

func newTokens() ([]byte, error) {
	var out bytes.Buffer
	w := csv.NewWriter(&out)
	for _, u := range users() {
		secret := make([]byte, 16)
		if _, err := rand.Read(secret); err != nil {
			return nil, err
		}
		if err := w.Write([]string{hex.EncodeToString(secret), u.Name, u.Name, strings.Join(u.Groups, ",")}); err != nil {
			return nil, err
		}
	}
	w.Flush()
	return out.Bytes(), w.Error()
}
