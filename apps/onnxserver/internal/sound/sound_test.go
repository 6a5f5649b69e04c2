package sound

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// wav returns a WAV file.
func wav(channels uint16, rate uint32, bits uint16, samples ...int16) []byte {
	order := binary.LittleEndian
	file := append([]byte("RIFF\x00\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00"), 0, 0)
	order.PutUint16(file[22:], channels)
	file = order.AppendUint32(file, rate)
	file = order.AppendUint32(file, rate*2)
	file = order.AppendUint16(file, 2)
	file = order.AppendUint16(file, bits)
	file = append(file, "LIST\x03\x00\x00\x00abc\x00data"...) // an odd chunk has a byte more
	file = order.AppendUint32(file, uint32(2*len(samples)))
	for _, s := range samples {
		file = order.AppendUint16(file, uint16(s))
	}
	return file
}

func TestParse_ReadsSamples(t *testing.T) {
	samples, err := Parse(wav(1, Rate, 16, 16384, -32768))
	require.NoError(t, err)
	require.Equal(t, []float32{0.5, -1}, samples)
	for _, file := range [][]byte{nil, []byte("text"), wav(2, Rate, 16), wav(1, 44100, 16), wav(1, Rate, 8), wav(1, Rate, 16)[:30]} {
		_, err := Parse(file)
		require.Error(t, err)
	}
}

func TestWindows_HaveTheEndOfTheWindowBefore(t *testing.T) {
	samples := make([]float32, 2*Window+100)
	for i := range samples {
		samples[i] = float32(i)
	}
	windows := Windows(samples)
	require.Len(t, windows, 2)
	first, err := windows[0].Floats()
	require.NoError(t, err)
	second, err := windows[1].Floats()
	require.NoError(t, err)
	require.Equal(t, make([]float32, 64), first[:64])
	require.Equal(t, samples[:Window], first[64:])
	require.Equal(t, samples[Window-64:2*Window], second)
	for _, input := range append(windows, FirstState(), RateInput()) {
		require.NoError(t, input.Check())
	}
}

func TestSpeech_JoinsPartsWithShortGaps(t *testing.T) {
	const yes, no = 0.9, 0.1
	require.Empty(t, Speech([]float32{no, no}, 0.5))
	require.Equal(t, []Span{{0, 0.096}, {0.32, 0.352}}, Speech([]float32{yes, no, yes, no, no, no, no, no, no, no, yes}, 0.5))
	require.Len(t, Speech([]float32{yes, no, no, no, no, yes}, 0.5), 1)
}
