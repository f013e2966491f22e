"""Reports of one analysis: one offline HTML page, a summary for the terminal, and JSON.

page.py       the page: template, styles and scripts of report/assets, filled with texts and tables
charts.py     figures of the charts
terminal.py   the summary and its tables
document.py   the JSON document
../../model/timeline/  the rows of the timeline and their packed marks
"""
