// Package authority is a small certificate authority for connections between Windlass' own
// programs. It is for operators without their own CA. Its certificates are used between an agent
// and its gateways, between replicas of the control plane, and in `windlass dev --tls`.
package authority

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"strings"
	"time"
)

const (
	// Life is how long a CA's own certificate is valid.
	Life = 10 * 365 * 24 * time.Hour
	// servedLife is how long the certificates of Serve are valid.
	servedLife = 30 * 24 * time.Hour
	// skew is the largest allowed difference between the clocks of two machines.
	skew = time.Hour
)

// Authority issues certificates. It is safe for concurrent use.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	// serving is the key of the certificates that Serve makes.
	serving *ecdsa.PrivateKey
}

// New returns an authority with a new key.
func New(name string, now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of a CA: %w", err)
	}
	return FromKey(name, key, now)
}

// FromKey returns the authority with the key and the name. Authorities with the same key and the same
// name trust each other's certificates.
func FromKey(name string, key crypto.Signer, now time.Time) (*Authority, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		NotBefore: now.Add(-skew), NotAfter: now.Add(Life), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of a CA: %w", err)
	}
	return newAuthority(der, key)
}

// Parse returns the authority with the certificate and the key that PEM returned.
func Parse(certPEM, keyPEM []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("CA: %w", err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, errors.New("CA: the certificate is not a CA certificate")
	}
	return newAuthority(pair.Certificate[0], key)
}

func newAuthority(der []byte, key crypto.Signer) (*Authority, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read the certificate of a CA: %w", err)
	}
	serving, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of the certificates that a CA serves: %w", err)
	}
	return &Authority{cert: cert, key: key, serving: serving}, nil
}

// PEM returns the CA's certificate and its key. The key must stay secret, because its holder can issue certificates.
func (a *Authority) PEM() (certPEM, keyPEM []byte, err error) {
	keyPEM, err = encodeKey(a.key)
	return a.CertPEM(), keyPEM, err
}

// CertPEM returns the CA's certificate.
func (a *Authority) CertPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// Pool returns a pool that contains only this CA.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Request describes a certificate.
type Request struct {
	// Name is the name of the holder.
	Name string
	// Hosts are the DNS names and IP addresses at which clients reach a server.
	Hosts []string
	// Client and Server say whether the certificate is for a client, for a server, or for both.
	Client, Server bool
	// Life is how long the certificate is valid.
	Life time.Duration
}

func (r Request) certificateTemplate(now time.Time) (*x509.Certificate, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	out := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: r.Name}, KeyUsage: x509.KeyUsageDigitalSignature,
		NotBefore: now.Add(-skew), NotAfter: now.Add(r.Life),
	}
	if r.Client {
		out.ExtKeyUsage = append(out.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	if r.Server {
		out.ExtKeyUsage = append(out.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, host := range r.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			out.IPAddresses = append(out.IPAddresses, ip)
		} else {
			out.DNSNames = append(out.DNSNames, host)
		}
	}
	return out, nil
}

// Issue returns a certificate with a new key, both in PEM.
func (a *Authority) Issue(r Request, now time.Time) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make the key of %s: %w", r.Name, err)
	}
	der, err := a.signRequest(r, key.Public(), now)
	if err != nil {
		return nil, nil, err
	}
	if keyPEM, err = encodeKey(key); err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), keyPEM, nil
}

func (a *Authority) signRequest(r Request, public crypto.PublicKey, now time.Time) ([]byte, error) {
	template, err := r.certificateTemplate(now)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of %s: %w", r.Name, err)
	}
	return der, nil
}

// Serve implements tls.Config.GetCertificate. It returns a certificate for the host that the client asks
// for, or else for the address that the client reached. No list of allowed names is needed, because this CA
// issues certificates only for the holder of its key.
func (a *Authority) Serve(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	host := hello.ServerName
	if host == "" {
		local, _, err := net.SplitHostPort(hello.Conn.LocalAddr().String())
		if err != nil {
			return nil, fmt.Errorf("make a certificate for %s: %w", hello.Conn.LocalAddr(), err)
		}
		host, _, _ = strings.Cut(local, "%")
	}
	der, err := a.signRequest(Request{Name: a.cert.Subject.CommonName, Hosts: []string{host}, Server: true, Life: servedLife}, a.serving.Public(), time.Now())
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.serving}, nil
}

func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("make the serial number of a certificate: %w", err)
	}
	return serial, nil
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
