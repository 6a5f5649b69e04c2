package session

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"github.com/windlass-run/windlass/pkg/proof"
)

// keyName is the file of the key to which the credential is bound. The file is written before the
// control plane gets the public key. So an agent that dies during a join or a renewal has the key
// for its credential.
const keyName = "agent.key"

// loadKey reads the key, if there is one. A missing file means that there is no key. The control
// plane then refuses a bound credential, and the agent joins with a new key.
func (c *Credentials) loadKey() error {
	data, err := c.files.Read(keyName)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("read the key of the credential: %w", err)
	}
	c.key, err = parseKey(data)
	if err != nil {
		return fmt.Errorf("%s (delete the file and give a new join token): %w", keyName, err)
	}
	return nil
}

func parseKey(data []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("the key of the credential is not in PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the key of the credential: %w", err)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, errors.New("the key of the credential is not an Ed25519 key")
	}
	return key, nil
}

func encodeKey(key ed25519.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the key of the credential: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// publicKey returns the public part of the key. If there is no key, it makes and stores one.
func (c *Credentials) publicKey() (ed25519.PublicKey, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.key == nil {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("make the key of the credential: %w", err)
		}
		data, err := encodeKey(key)
		if err != nil {
			return nil, err
		}
		if err := c.files.Replace(keyName, data); err != nil {
			return nil, fmt.Errorf("store the key of the credential: %w", err)
		}
		c.key = key
	}
	public, ok := c.key.Public().(ed25519.PublicKey)
	if !ok {
		return nil, errors.New("the key of the credential has no public half")
	}
	return public, nil
}

// Sign adds a proof with the key to a call's header, for rpc.ClientConfig.
func (c *Credentials) Sign(procedure string, header http.Header) {
	c.mu.Lock()
	key, session, ahead := c.key, c.session, c.ahead
	c.mu.Unlock()
	if key == nil {
		return
	}
	credential := strings.TrimPrefix(header.Get("Authorization"), "Bearer ")
	value, err := proof.Sign(key, procedure, session, credential, time.Now().Add(ahead))
	if err != nil {
		return // the control plane's error says what is missing
	}
	header.Set(proof.Header, value)
}

// Refused learns from an answer how far the control plane's clock is ahead of the agent's, for
// rpc.ClientConfig. So a host with a wrong clock does not lose its region.
func (c *Credentials) Refused(answer http.Header) {
	theirs, err := http.ParseTime(answer.Get("Date"))
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ahead = time.Until(theirs); c.ahead.Abs() < proof.Window/2 {
		c.ahead = 0
	}
}
