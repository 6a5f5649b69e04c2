package proxy

import (
	"math/rand/v2"
	"strings"
	"time"

	"github.com/windlass-run/windlass/pkg/ident"
)

// requestID returns the client's id if its length and characters are safe in logs and headers, and otherwise a new
// id.
func requestID(id string, now time.Time) string {
	if id == "" || len(id) > 128 {
		return newRequestID(now)
	}
	for i := range len(id) {
		c := id[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("-_.:/+=", rune(c)) {
			return newRequestID(now)
		}
	}
	return id
}

// newRequestID returns an id that is unique, but can be guessed.
func newRequestID(now time.Time) string { return ident.From("req", now, rand.Uint64(), rand.Uint64()) }
