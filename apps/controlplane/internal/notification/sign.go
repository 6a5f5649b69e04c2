package notification

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Headers of the Standard Webhooks scheme.
const (
	HeaderID        = "webhook-id"
	HeaderTimestamp = "webhook-timestamp"
	HeaderSignature = "webhook-signature"
)

// SecretPrefix begins every signing secret.
const SecretPrefix = "whsec_"

// SecretBytes is how many random bytes a signing secret has.
const SecretBytes = 32

// NewSecret returns the signing secret of random bytes.
func NewSecret(random []byte) string { return SecretPrefix + base64.StdEncoding.EncodeToString(random) }

// Target is the sealed part of an endpoint.
type Target struct {
	URL string `json:"url"`
	// Secrets are the signing secrets, the newest first.
	Secrets []SigningSecret `json:"secrets"`
}

// SigningSecret signs until a time in ms; 0: until it is replaced.
type SigningSecret struct {
	Value string `json:"value"`
	Until int64  `json:"until,omitempty"`
}

// Encode returns the target in the form that is sealed.
func (t Target) Encode() ([]byte, error) { return json.Marshal(t) }

// ParseTarget reads what Encode wrote.
func ParseTarget(b []byte) (t Target, err error) {
	if err := json.Unmarshal(b, &t); err != nil {
		return t, errors.New("the endpoint's sealed target cannot be read")
	}
	return t, nil
}

// Rotate returns the target with a new signing secret. The previous secret also signs until the time, in unix ms.
// Older secrets are dropped.
func (t Target) Rotate(secret string, until int64) Target {
	rotated := Target{URL: t.URL, Secrets: []SigningSecret{{Value: secret}}}
	if len(t.Secrets) > 0 {
		rotated.Secrets = append(rotated.Secrets, SigningSecret{Value: t.Secrets[0].Value, Until: until})
	}
	return rotated
}

// Sign returns the signature header of a call at a time in unix seconds. It has one signature for each secret
// that signs at that time, so that a receiver with either secret accepts the call during a rotation.
func (t Target) Sign(id string, at int64, body []byte) (string, error) {
	var signatures []string
	for _, s := range t.Secrets {
		if s.Until != 0 && s.Until <= at*1000 {
			continue
		}
		signature, err := signBody(s.Value, id, at, body)
		if err != nil {
			return "", err
		}
		signatures = append(signatures, signature)
	}
	if len(signatures) == 0 {
		return "", errors.New("the endpoint has no signing secret")
	}
	return strings.Join(signatures, " "), nil
}

func signBody(secret, id string, at int64, body []byte) (string, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, SecretPrefix))
	if err != nil {
		return "", errors.New("the signing secret is not base64")
	}
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s.%s", id, strconv.FormatInt(at, 10), body) //nolint:errcheck // a hash takes everything
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)), nil
}
