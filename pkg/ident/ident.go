// Package ident makes ids, which programs choose, and checks ids and names, which people choose.
//
// An id is a prefix for its kind, an underscore and a UUIDv7 in 32 lower case hex digits:
// "app_0199a3f2c4d87b1e9c3f5a6b7c8d9e0f". A UUIDv7 begins with the milliseconds since 1970, so ids with the
// same prefix sort by time as plain ASCII. New rows are next to each other in a primary key, and a list in
// the order of ids is in the order of creation.
package ident

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

// NameLength is the maximum length of a name in bytes, because a name becomes a DNS label.
const NameLength = 63

// hexLength is the length of a UUID without its dashes.
const hexLength = 32

// New returns a new id: "prefix_" and 32 hex digits. The ids that a process makes with New are strictly
// ascending.
func New(prefix string) string {
	// Must never panics, because crypto/rand ends the process if the system has no randomness.
	u := uuid.Must(uuid.NewRandomFromReader(rand.Reader))
	return spellID(prefix, newest.next(time.Now()), u)
}

// From returns an id with the given time and random bits. It is for ids that are made ten thousand times a
// second and need not be secret. Ids of the same millisecond are in no order.
func From(prefix string, at time.Time, high, low uint64) string {
	var u uuid.UUID
	binary.BigEndian.PutUint64(u[8:], low&^(3<<62)|1<<63)
	return spellID(prefix, at.UnixMilli()<<12|int64(high&0xfff), u)
}

// spellID returns the id. at is the time in 4096ths of a millisecond. u has the other bits.
func spellID(prefix string, at int64, u uuid.UUID) string {
	binary.BigEndian.PutUint64(u[:8], uint64(at>>12)<<16|0x7000|uint64(at&0xfff))
	id := make([]byte, 0, len(prefix)+1+hexLength)
	id = append(append(id, prefix...), '_')
	return string(hex.AppendEncode(id, u[:]))
}

// stamp is the time of the newest id, in 4096ths of a millisecond.
type stamp struct {
	mu sync.Mutex
	at int64
}

var newest stamp

// next returns now, or the time after the newest id if the clock has not advanced since.
func (s *stamp) next(now time.Time) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	nano := now.UnixNano()
	s.at = max(nano/1e6<<12+nano%1e6>>8, s.at+1)
	return s.at
}

// Forget makes the next id have the present time, even if an earlier id has a later time. It is for tests in
// virtual time, because these tests all begin at the same time.
func Forget() {
	newest.mu.Lock()
	defer newest.mu.Unlock()
	newest.at = 0
}

// Before returns a string that sorts before every id of the prefix that was made at or
// after the time, to the millisecond, and after every earlier id.
func Before(prefix string, at time.Time) string {
	return fmt.Sprintf("%s_%012x", prefix, max(at.UnixMilli(), 0))
}

// Valid reports whether New(prefix) could have returned id. Each id has only one spelling, so ids can be
// compared as strings.
func Valid(prefix, id string) bool {
	digits, ok := strings.CutPrefix(id, prefix+"_")
	if !ok || len(digits) != hexLength {
		return false
	}
	for _, c := range []byte(digits) {
		if !isDigit(c) && (c < 'a' || c > 'f') {
			return false
		}
	}
	// The 13th digit is the version, and the 17th digit begins with the variant bits 10.
	return digits[12] == '7' && strings.IndexByte("89ab", digits[16]) >= 0
}

// ValidName reports whether s is a valid name: 1 to 63 lower case letters,
// digits and dashes, beginning with a letter and not ending with a dash. That is
// [a-z]([-a-z0-9]{0,61}[a-z0-9])?, a DNS label.
func ValidName(s string) bool {
	if s == "" || len(s) > NameLength || !isLetter(s[0]) || s[len(s)-1] == '-' {
		return false
	}
	for _, c := range []byte(s) {
		if !isLetter(c) && !isDigit(c) && c != '-' {
			return false
		}
	}
	return true
}

func isLetter(c byte) bool { return 'a' <= c && c <= 'z' }

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
