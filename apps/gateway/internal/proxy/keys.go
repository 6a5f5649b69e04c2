package proxy

import (
	"crypto/sha256"
	"strings"
	"time"

	"github.com/windlass-run/windlass/apps/gateway/internal/upstream"
)

// keyField is a field that may contain a request's key. scheme is the text before the key.
type keyField struct{ name, scheme string }

var keyFields = [...]keyField{{"Authorization", "Bearer "}, {"X-Api-Key", ""}}

// appKey is the app's key that a request came with. Instances do not get the field with the key. Gateways of other
// regions do.
type appKey struct {
	// name is the name of the key. Empty: the request has no key.
	name string
	// field and value are the name and the value of the field with the key.
	field, value string
}

// admitsKey reports whether the request has one of the app's keys, and stores it in x.key.
func (x *exchange) admitsKey(f fields) bool {
	for i := range keyFields {
		k := &keyFields[i]
		if values := f.fieldValues(k.name); len(values) == 1 { // two values count as no key
			if name, ok := x.keyNamed(values[0], k.scheme); ok {
				x.key = appKey{name, k.name, values[0]}
				return true
			}
		}
	}
	return false
}

// keyNamed returns the name of the app's key in a field's value. ok is false if the value is not a key of the app.
func (x *exchange) keyNamed(value, scheme string) (name string, ok bool) {
	if len(value) < len(scheme) || !strings.EqualFold(value[:len(scheme)], scheme) {
		return "", false
	}
	key, ok := x.spec.Keys[upstream.Hash(sha256.Sum256([]byte(strings.TrimSpace(value[len(scheme):]))))]
	if !ok || !key.Until.IsZero() && !time.Now().Before(key.Until) {
		return "", false
	}
	return key.Name, true
}
