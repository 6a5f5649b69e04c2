package model

import (
	"crypto/sha256"
	"fmt"
)

// HashToken is how API keys and join tokens are kept and looked up. They are 32
// random bytes: a plain hash is enough.
func HashToken(token string) []byte {
	sum := sha256.Sum256([]byte(token))
	return sum[:]
}

// SecretContext binds a secret's ciphertext to its place.
func SecretContext(environmentID, name string, version int32) string {
	return fmt.Sprintf("windlass secret %s/%s/%d", environmentID, name, version)
}
