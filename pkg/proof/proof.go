// Package proof is how an agent proves, with each call, that it has the key that its credential
// is bound to: a short statement about the call, signed with that key. A proxy in front of the
// control plane passes it on, and a stolen credential is useless without the key.
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

// Header of a call that carries the proof.
const Header = "Windlass-Proof"

// Window is how far the clocks of an agent and of the control plane may be apart, and how long
// a proof that was seen on its way is good for the same call.
const Window = 2 * time.Minute

const (
	// domain keeps what is signed from being a valid signature of anything else.
	domain = "windlass agent proof v1\n"
	// maxLength of a proof; one has some 300 bytes.
	maxLength = 2048
)

// What is wrong with a proof.
var (
	ErrMissing = errors.New("the call carries no proof of the key that its credential is bound to")
	ErrKey     = errors.New("the proof is not signed with the key that the credential is bound to")
	ErrCall    = errors.New("the proof is of another call or of another credential")
	ErrTime    = errors.New("the proof was made at another time: look at the clocks of both machines")
)

type statement struct {
	Procedure  string `json:"p"`
	Session    string `json:"s"`
	At         int64  `json:"t"` // unix ms
	Credential []byte `json:"c"` // SHA-256
}

// Sign returns the header's value for a call. Session is the same for all calls of one start of
// the agent.
func Sign(key ed25519.PrivateKey, procedure, session, credential string, at time.Time) (string, error) {
	hash := sha256.Sum256([]byte(credential))
	data, err := json.Marshal(statement{Procedure: procedure, Session: session, At: at.UnixMilli(), Credential: hash[:]})
	if err != nil {
		return "", fmt.Errorf("encode a proof: %w", err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	return encode(data) + "." + encode(ed25519.Sign(key, append([]byte(domain), data...))), nil
}

// Verify returns the session of the call that the header's value proves.
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
