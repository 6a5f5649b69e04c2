package model

import (
	"crypto/sha256"
	"fmt"
)

// HashToken returns the hash by which API keys and join tokens are stored and looked up. A plain hash is
// enough, because they are 32 random bytes.
func HashToken(token string) []byte {
	sum := sha256.Sum256([]byte(token))
	return sum[:]
}

// SecretContext binds a secret's ciphertext to its place.
func SecretContext(environmentID, name string, version int32) string {
	return fmt.Sprintf("windlass secret %s/%s/%d", environmentID, name, version)
}
