package scaling

import (
	"crypto/sha256"
	"encoding/hex"
)

// QueryKey returns the key under which results of a query are stored: the first 16 hex digits of its SHA-256.
func QueryKey(query string) string {
	sum := sha256.Sum256([]byte(query))
	return hex.EncodeToString(sum[:8])
}
