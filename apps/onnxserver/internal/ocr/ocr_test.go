package ocr

import (
	"image"
	"image/color"
	"testing"

	"github.com/stretchr/testify/require"
)

// probabilitiesOf returns a map of probabilities with filled boxes.
func probabilitiesOf(width, height int, p float32, boxes ...image.Rectangle) []float32 {
	values := make([]float32, width*height)
	for _, box := range boxes {
		for y := box.Min.Y; y < box.Max.Y; y++ {
			for x := box.Min.X; x < box.Max.X; x++ {
				values[y*width+x] = p
			}
		}
	}
	return values
}

func TestBoxes_AreScaledGrownAndInOrder(t *testing.T) {
	values := probabilitiesOf(100, 60, 0.9, image.Rect(50, 11, 90, 21), image.Rect(5, 10, 40, 20), image.Rect(5, 40, 40, 50), image.Rect(60, 40, 61, 50))
	boxes, err := Boxes(image.Rect(0, 0, 200, 60), values, []int64{1, 1, 60, 100})
	require.NoError(t, err)
	require.Equal(t, []image.Rectangle{image.Rect(0, 4, 92, 26), image.Rect(88, 5, 192, 27), image.Rect(0, 34, 92, 56)}, boxes)

	boxes, err = Boxes(image.Rect(0, 0, 100, 60), probabilitiesOf(100, 60, 0.4, image.Rect(5, 10, 40, 20)), []int64{1, 1, 60, 100})
	require.NoError(t, err)
	require.Empty(t, boxes, "the mean probability is too low")
	_, err = Boxes(image.Rect(0, 0, 100, 60), values, []int64{1, 1, 60, 101})
	require.ErrorContains(t, err, "not [1 1 HEIGHT WIDTH]")
}

func TestDetectionInput_HasSidesThatTheModelTakes(t *testing.T) {
	input := DetectionInput(image.NewGray(image.Rect(0, 0, 2000, 500)))
	require.Equal(t, []int64{1, 3, 256, 960}, input.Shape)
	require.NoError(t, input.Check())
	require.Equal(t, []int64{1, 3, 32, 32}, DetectionInput(image.NewGray(image.Rect(0, 0, 1, 1))).Shape)
}

func TestInputs_ArePaddedWithZeros(t *testing.T) {
	picture := image.NewRGBA(image.Rect(0, 0, 10, 10))
	for i := range picture.Pix {
		picture.Pix[i] = 0xff
	}
	input := OrientationInput(picture, picture.Bounds())
	require.Equal(t, []int64{1, 3, 48, 192}, input.Shape)
	values, err := input.Floats()
	require.NoError(t, err)
	require.InDelta(t, 1, values[47], 1e-6)
	require.Zero(t, values[48])
	require.Equal(t, []int64{1, 3, 48, 320}, RecognitionInput(picture, picture.Bounds()).Shape)
	require.Equal(t, []int64{1, 3, 48, 480}, RecognitionInput(picture, image.Rect(0, 0, 10, 1)).Shape)
}

func TestTurn_ShowsTheBoxUpsideDown(t *testing.T) {
	picture := image.NewGray(image.Rect(0, 0, 10, 6))
	picture.SetGray(2, 1, color.Gray{Y: 200})
	other, box := Turn(picture, image.Rect(2, 1, 5, 4))
	require.Equal(t, image.Rect(5, 2, 8, 5), box)
	require.Equal(t, color.Gray{Y: 200}, other.At(box.Max.X-1, box.Max.Y-1))
	require.True(t, IsTurned([]float32{0.05, 0.95}))
	require.False(t, IsTurned([]float32{0.2, 0.8}))
}

func TestText_DropsRepeatedCharacters(t *testing.T) {
	characters := Characters("a\nb\n")
	require.Equal(t, []string{"", "a", "b", " "}, characters)
	var values []float32
	for _, class := range []int{0, 1, 1, 0, 1, 3, 2, 2, 0} {
		row := []float32{0.1, 0.1, 0.1, 0.1}
		row[class] = 0.7
		values = append(values, row...)
	}
	text, sure, err := Text(values, []int64{1, 9, 4}, characters)
	require.NoError(t, err)
	require.Equal(t, "aa b", text)
	require.InDelta(t, 0.7, sure, 1e-6)
	_, _, err = Text(values, []int64{1, 9, 5}, characters)
	require.ErrorContains(t, err, "there are 4 characters")
	text, _, err = Text(nil, []int64{1, 0, 4}, characters)
	require.NoError(t, err)
	require.Empty(t, text)
}
