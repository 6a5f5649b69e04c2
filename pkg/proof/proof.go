// Package proof makes and checks an agent's proof that it has the key to which its credential is
// bound. The proof is a short statement about one call, signed with that key. Proxies in front of
// the control plane pass it on. A stolen credential is useless without the key.
package proof

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Header is the header of a call that carries the proof.
const Header = "Windlass-Proof"

// Window is the maximum difference between the clocks of an agent and the control plane. A stolen
// proof can be used again for the same call within this time.
const Window = 2 * time.Minute

const (
	// domain begins each signed statement, so that the signature is not valid for another purpose.
	domain = "windlass agent proof v1\n"
	// maxLength is the maximum length of a proof in bytes. A usual proof has about 300 bytes.
	maxLength = 2048
)

// These are the errors of Verify.
var (
	ErrMissing = errors.New("the call has no proof of the key to which its credential is bound")
	ErrKey     = errors.New("the proof is not signed with the key to which the credential is bound")
	ErrCall    = errors.New("the proof is for another call or another credential")
	ErrTime    = errors.New("the proof's time is too far from now: compare the clocks of both machines")
)

type statement struct {
	Procedure  string `json:"p"`
	Session    string `json:"s"`
	At         int64  `json:"t"` // unix ms
	Credential []byte `json:"c"` // SHA-256
}

// Sign returns the header's value for a call. All calls of an agent have the same session until the
// agent restarts.
func Sign(key ed25519.PrivateKey, procedure, session, credential string, at time.Time) (string, error) {
	hash := sha256.Sum256([]byte(credential))
	data, err := json.Marshal(statement{Procedure: procedure, Session: session, At: at.UnixMilli(), Credential: hash[:]})
	if err != nil {
		return "", fmt.Errorf("encode a proof: %w", err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	return encode(data) + "." + encode(ed25519.Sign(key, append([]byte(domain), data...))), nil
}

// Verify checks the header's value for a call, and returns the session.
func Verify(value string, key ed25519.PublicKey, procedure, credential string, now time.Time) (session string, err error) {
	if value == "" {
		return "", ErrMissing
	}
	body, signature, ok := strings.Cut(value, ".")
	if !ok || len(value) > maxLength || len(key) != ed25519.PublicKeySize {
		return "", ErrKey
	}
	data, err := base64.RawURLEncoding.DecodeString(body)
	if err != nil {
		return "", ErrKey
	}
	signed, err := base64.RawURLEncoding.DecodeString(signature)
	if err != nil || !ed25519.Verify(key, append([]byte(domain), data...), signed) {
		return "", ErrKey
	}
	var s statement
	if err := json.Unmarshal(data, &s); err != nil {
		return "", ErrCall
	}
	hash := sha256.Sum256([]byte(credential))
	if s.Procedure != procedure || subtle.ConstantTimeCompare(s.Credential, hash[:]) != 1 {
		return "", ErrCall
	}
	if off := now.Sub(time.UnixMilli(s.At)); off.Abs() > Window {
		return "", ErrTime
	}
	return s.Session, nil
}
