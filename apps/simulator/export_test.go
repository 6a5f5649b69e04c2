package simulator

// FillPage is fillPage, for tests that run scenarios.
var FillPage = fillPage

var MakeResultFolder = makeResultFolder
