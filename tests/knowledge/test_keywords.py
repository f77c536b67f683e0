"""Chinese, Japanese and Korean by words alone."""

from pathlib import Path
from uuid import UUID, uuid4

from backend.infra.analyze import analyze, analyze_query
from backend.knowledge.chunk import chunk_pages
from backend.knowledge.index.base import IndexRow
from backend.knowledge.index.lance import LanceChunkIndex
from backend.knowledge.parse import Page

DOCUMENTS = [
    "北京地铁十号线全长五十七公里，沿途共设四十五座车站，是一条环形线路。首班车清晨五点发车。",
    "青藏铁路穿过昆仑山口，最高点海拔五千零七十二米。列车车厢配有供氧设备，供旅客使用。",
    "三峡大坝位于湖北省宜昌市，坝顶高程一百八十五米，安装三十二台水轮发电机组。",
    "敦煌莫高窟始建于前秦时期，现存洞窟七百三十五个，壁画面积四万五千平方米。",
    "西湖龙井茶产于杭州，以色绿、香郁、味甘、形美著称，清明前采摘的最为珍贵。",
    "水泵房的压力表每周校准一次，读数超过三百千帕时应立即关闭进水阀门并通知值班员。",
    "员工休假须提前十个工作日在系统中申请，由部门主管批准后抄送人力资源部。",
    "量子计算机利用叠加与纠缠进行运算，超导量子比特需要在接近绝对零度的环境下工作。",
    "大熊猫主要栖息于四川的竹林，成年个体每天要吃掉十二到三十八公斤竹子。",
    "消防演习定于每季度第一个星期五举行，全体人员须沿疏散通道撤离到停车场。",
    "新幹線のぞみ号は東京駅から新大阪駅まで約二時間半で走り、全席禁煙となっています。",
    "富士山の標高は三千七百七十六メートルで、登山道は七月上旬から九月上旬まで開通します。",
    "茶道では客が茶室に入る前に手水鉢で手と口を清め、静かに露地を歩きます。",
    "ポンプの定期点検は毎月第二火曜日に実施し、異常な振動があれば運転を停止してください。",
    "図書館の閲覧席は予約が必要で、貸出期間は二週間、延長は一回まで可能です。",
    "台風が接近すると空港の滑走路は閉鎖され、乗客には振替便の案内が送られます。",
    "味噌は大豆を蒸して麹と塩を加え、半年以上熟成させて作る発酵食品です。",
    "地震が起きたら机の下に隠れ、揺れが収まってから避難経路を確認しましょう。",
    "カメラのシャッター速度を遅くすると、滝の流れが絹糸のように写ります。",
    "温泉旅館の夕食は午後六時から始まり、地元の山菜と川魚が並びます。",
    "경복궁은 조선 시대의 대표적인 궁궐로 근정전에서 왕의 즉위식이 거행되었다.",
    "제주도의 한라산은 해발 천구백오십 미터이며 정상에는 백록담이라는 호수가 있다.",
    "김치는 배추를 소금에 절인 뒤 고춧가루와 마늘로 양념하여 발효시킨 음식이다.",
    "냉각 펌프의 압력이 기준치를 넘으면 비상 밸브가 자동으로 열리고 경보가 울린다.",
    "지하철 막차 시간은 평일 자정이며 주말에는 삼십 분 일찍 운행이 종료된다.",
    "도서관 회원증을 잃어버린 경우 신분증을 지참하여 안내 데스크에서 재발급받을 수 있다.",
    "한글은 세종대왕이 천사백사십삼년에 창제하였으며 자음과 모음으로 이루어져 있다.",
    "태풍 경보가 발령되면 선박은 항구로 돌아오고 해수욕장 출입이 금지된다.",
    "반도체 공정에서는 웨이퍼 표면에 감광액을 바르고 자외선으로 회로를 새긴다.",
    "직원 건강 검진은 매년 시월에 실시하며 전날 저녁부터 금식해야 한다.",
]
QUERIES = [
    ("环形线路", 0),
    ("供氧", 1),
    ("水轮发电机", 2),
    ("壁画面积", 3),
    ("清明前采摘", 4),
    ("校准", 5),
    ("抄送人力资源部", 6),
    ("绝对零度的环境下", 7),
    ("疏散通道", 9),
    ("全席禁煙", 10),
    ("登山道", 11),
    ("手水鉢", 12),
    ("異常な振動", 13),
    ("振替便", 15),
    ("熟成させて", 16),
    ("絹糸のように", 18),
    ("즉위식", 20),
    ("백록담이라는", 21),
    ("고춧가루", 22),
    ("감광액을", 28),
]


async def test_i03_substrings_are_found_by_words_alone(data_dir: Path) -> None:
    index = await LanceChunkIndex.open(str(data_dir), dimensions=2, embedder="none")
    documents: dict[UUID, int] = {}
    for number, text in enumerate(DOCUMENTS):
        version_id = uuid4()
        leaves = [chunk for chunk in chunk_pages([Page(None, text)], version_id, len) if chunk.level == 3]
        documents |= {leaf.id: number for leaf in leaves}
        await index.add(
            [IndexRow(leaf.id, version_id, version_id, True, analyze(leaf.text), [1, 0]) for leaf in leaves]
        )
    assert all(2 <= len(query) <= 8 and query in DOCUMENTS[number] for query, number in QUERIES)
    for folded in (False, True):
        hits = 0
        for query, number in QUERIES:
            found = await index.search(None, analyze_query(query), limit=5, user_id=uuid4())
            assert found.mode == "sparse"
            assert found.hits, f"the word arm is dead for {query}"
            hits += number in [documents[hit.chunk_id] for hit in found.hits]
        assert hits / len(QUERIES) >= 0.9
        if not folded:
            await index._table.optimize()
    await index.aclose()
