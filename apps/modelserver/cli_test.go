package modelserver

import (
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
)

func TestFlagDefaultsAreTheZeroConfigsDefaults(t *testing.T) {
	var cfg Config
	parser, err := kong.New(&cfg)
	require.NoError(t, err)
	_, err = parser.Parse(nil)
	require.NoError(t, err)

	want := Config{}.withDefaults()
	// On purpose different: a test wants a free port and full speed, a person
	// trying the program a known port, a visible stream and a queue.
	want.Port, want.TokenRate, want.TimeToFirstToken, want.Queue = cfg.Port, cfg.TokenRate, cfg.TimeToFirstToken, cfg.Queue
	require.Equal(t, want, cfg.withDefaults())
}
