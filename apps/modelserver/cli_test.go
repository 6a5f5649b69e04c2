package modelserver

import (
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
)

func TestFlags_DefaultsAreTheZeroConfigs(t *testing.T) {
	var cfg Config
	parser, err := kong.New(&cfg)
	require.NoError(t, err)
	_, err = parser.Parse(nil)
	require.NoError(t, err)

	want := Config{}.withDefaults()
	// These defaults differ on purpose. A test needs a free port and full speed. A person needs a known port, a
	// visible stream and a queue.
	want.Port, want.TokenRate, want.TimeToFirstToken, want.Queue = cfg.Port, cfg.TokenRate, cfg.TimeToFirstToken, cfg.Queue
	require.Equal(t, want, cfg.withDefaults())
}
