package proof

import (
	"crypto/ed25519"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestVerify(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	other, _, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	now := time.UnixMilli(1_800_000_000_000)
	value, err := Sign(private, "/a/Report", "ses_1", "wla_x", now)
	require.NoError(t, err)

	session, err := Verify(value, public, "/a/Report", "wla_x", now.Add(Window))
	require.NoError(t, err)
	require.Equal(t, "ses_1", session)
	for name, test := range map[string]struct {
		value      string
		key        ed25519.PublicKey
		procedure  string
		credential string
		now        time.Time
		want       error
	}{
		"nothing":                 {"", public, "/a/Report", "wla_x", now, ErrMissing},
		"another key":             {value, other, "/a/Report", "wla_x", now, ErrKey},
		"no key":                  {value, nil, "/a/Report", "wla_x", now, ErrKey},
		"another procedure":       {value, public, "/a/GetSecrets", "wla_x", now, ErrCall},
		"another credential":      {value, public, "/a/Report", "wla_y", now, ErrCall},
		"too late":                {value, public, "/a/Report", "wla_x", now.Add(Window + time.Millisecond), ErrTime},
		"too early":               {value, public, "/a/Report", "wla_x", now.Add(-Window - time.Millisecond), ErrTime},
		"without a signature":     {strings.Split(value, ".")[0], public, "/a/Report", "wla_x", now, ErrKey},
		"with an empty signature": {strings.Split(value, ".")[0] + ".", public, "/a/Report", "wla_x", now, ErrKey},
		"a changed statement":     {"A" + value, public, "/a/Report", "wla_x", now, ErrKey},
		"too long":                {strings.Repeat("A", maxLength) + "." + "A", public, "/a/Report", "wla_x", now, ErrKey},
	} {
		_, err := Verify(test.value, test.key, test.procedure, test.credential, test.now)
		require.ErrorIs(t, err, test.want, name)
	}
}

func FuzzVerify(f *testing.F) {
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(f, err)
	now := time.UnixMilli(1_800_000_000_000)
	value, err := Sign(private, "/a/Report", "ses_1", "wla_x", now)
	require.NoError(f, err)
	f.Add(value)
	f.Add("e30.AAAA")
	f.Fuzz(func(t *testing.T, given string) {
		if _, err := Verify(given, public, "/a/Report", "wla_x", now); err == nil && given != value {
			// Base64 without padding may end in bits that mean nothing.
			require.Equal(t, value[:len(value)-1], given[:len(given)-1])
		}
	})
}
